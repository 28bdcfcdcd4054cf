-- The columns of each row, in the order of the fields of its class in the model. A test compares the two.

-- fragment: run_columns
run_id, workflow, version, state, route, root_run_id, created_at, org, environment, execution_seq, lease_token_hash,
facts, epoch, attempt, retry_count, lease_recoveries, consecutive_recoveries, charged_recoveries, priority,
parent_run_id, started_at, ended_at, deadline_at, scheduled_at, max_recoveries, compensations, compensating_for,
resume_state, reason, status_text, warnings, input_hash, idempotency_key, concurrency_key, labels, limits, python

-- fragment: queue_columns
run_id, route, priority, enqueued_at, eligible_at, execution_seq, status, blocked_lane, reserved_by,
reservation_token, reserved_until

-- fragment: lease_columns
run_id, execution_seq, token_hash, session_id, acquired_at, expires_at, executing

-- fragment: session_columns
session_id, worker_id, host, boot_id, pid, process_id, routes, slots, credits, started_at, heartbeat_at, expires_at,
lock_path, lock_device, lock_inode, wake_address, suspect_since, draining, org, environment, kind, serves, supervisor,
key_id

-- fragment: key_columns
key_id, org, environment, kind, role, name, key_hash, workflows, created_at, created_by, expires_at, revoked_at,
last_used_at

-- fragment: audit_columns
audit_id, org, environment, at, action, actor, run_id, fields

-- fragment: wait_columns
run_id, step_id, kind, status, due_at, pre_claim_status, claimed_by, claimed_at

-- A head is read from `runs r`; the last column is the reservation.
-- fragment: head_columns
r.run_id, r.workflow, r.version, r.state, r.route, r.root_run_id, r.created_at, r.execution_seq, r.facts, r.attempt,
r.priority, r.consecutive_recoveries, r.charged_recoveries, r.compensating_for, r.deadline_at, r.warnings, r.limits

-- Most payloads stand in the row. The others are looked up only where the row has none (coalesce stops early).
-- fragment: event_columns
e.seq, e.kind, e.step_id,
coalesce(e.payload, (select p.payload from journal_payloads p where p.run_id = e.run_id and p.seq = e.seq)),
e.execution_seq, e.at

-- The same, but of the others only that they are there (see `model.journal.APART`).
-- fragment: slim_event_columns
e.seq, e.kind, e.step_id,
coalesce(e.payload, (select '' from journal_payloads p where p.run_id = e.run_id and p.seq = e.seq)),
e.execution_seq, e.at

-- No columns, but shared like them: the suspects that belong to a mass, by the rule in `model.suspicion`, each with the
-- size of it (`company`) and the live sessions that it was compared with. Asked inside a statement that names the time
-- `clock (at)`. The inner count is that of the stretch which begins with a suspect; the outer one takes the fullest of
-- those stretches that it lies in.
-- fragment: mass
select s.session_id, s.company, l.live from (
    select session_id, suspect_since, max(company) over (
        order by suspect_since range between cast(:within as bigint) preceding and current row) as company
    from (
        select session_id, suspect_since, count(*) over (
            order by suspect_since range between current row and cast(:within as bigint) following) as company
        from worker_sessions where suspect_since is not null
    ) b
) s cross join (
    select count(*) as live from worker_sessions w cross join clock c
    where w.suspect_since is not null or w.expires_at > c.at
) l
where s.company > 3 and 5 * s.company > l.live
