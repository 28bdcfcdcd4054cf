-- One run, one round trip: what a lone caller waits for. A function saves the parser and planner work of the many-run
-- statements, which on a single row costs more than the row itself.
--
-- Every name here ends in `_v`; the store puts a digest of this file in its place, so that during a rolling upgrade
-- the older program goes on calling the functions it was written against.
--
-- Each answers `clock * 8 + answer`, one bigint: a composite would make the driver ask for its type. The answers:
-- 0 applied, 1 stale, 2 news, 3 lost, 4 exists, 7 "not here": the run takes part in concurrency limits, so the caller
-- must use a transaction that locks their rows. Whatever is not 0 has written nothing.

-- The clock, never below what the caller saw last. A negative floor is a clock of the caller's own, for tests.
create or replace function ironflow_clock_v(p_floor bigint) returns bigint language sql volatile as $$
    select case when p_floor < 0 then -p_floor
                else greatest(p_floor, floor(date_part('epoch', clock_timestamp()) * 1000)::bigint) end
$$;

-- Events of one run, numbered from p_seq. One to three are spelled out: most transitions have no more.
create or replace function ironflow_journal_v(
    p_run text, p_execution_seq bigint, p_at bigint, p_seq bigint, p_kinds text[], p_steps text[], p_payloads text[]
) returns void language plpgsql volatile as $$
begin
    case cardinality(p_kinds)
    when 0 then null;
    when 1 then
        insert into journal_events (run_id, seq, kind, step_id, payload, execution_seq, at)
        values (p_run, p_seq, p_kinds[1], p_steps[1], p_payloads[1], p_execution_seq, p_at);
    when 2 then
        insert into journal_events (run_id, seq, kind, step_id, payload, execution_seq, at)
        values (p_run, p_seq, p_kinds[1], p_steps[1], p_payloads[1], p_execution_seq, p_at),
               (p_run, p_seq + 1, p_kinds[2], p_steps[2], p_payloads[2], p_execution_seq, p_at);
    when 3 then
        insert into journal_events (run_id, seq, kind, step_id, payload, execution_seq, at)
        values (p_run, p_seq, p_kinds[1], p_steps[1], p_payloads[1], p_execution_seq, p_at),
               (p_run, p_seq + 1, p_kinds[2], p_steps[2], p_payloads[2], p_execution_seq, p_at),
               (p_run, p_seq + 2, p_kinds[3], p_steps[3], p_payloads[3], p_execution_seq, p_at);
    else
        insert into journal_events (run_id, seq, kind, step_id, payload, execution_seq, at)
        select p_run, p_seq + e.n - 1, e.kind, e.step, e.payload, p_execution_seq, p_at
        from unnest(p_kinds, p_steps, p_payloads) with ordinality as e (kind, step, payload, n);
    end case;
end
$$;

-- The owner adds to its journal and stays.
create or replace function ironflow_append_v(
    p_floor bigint, p_run text, p_execution_seq bigint, p_token text,
    p_seq bigint, p_kinds text[], p_steps text[], p_payloads text[]
) returns bigint language plpgsql volatile as $$
declare
    v_at bigint;
begin
    perform 1 from runs
    where run_id = p_run and execution_seq = p_execution_seq and lease_token_hash = p_token
      and state in ('running', 'cancelling')
    for no key update;
    if not found then
        return ironflow_clock_v(p_floor) * 8 + 1;
    end if;
    v_at := ironflow_clock_v(p_floor);
    perform ironflow_journal_v(p_run, p_execution_seq, v_at, p_seq, p_kinds, p_steps, p_payloads);
    return v_at * 8;
end
$$;

-- Whether its owner may bring a run to a state (null: it keeps its own): `run.may_become`. Inlined by the planner.
create or replace function ironflow_legal_v(p_from text, p_to text, p_warnings bigint)
returns boolean language sql immutable as $$
    select case when p_from = 'cancelling' then coalesce(p_to in ('cancelling', 'cancelled', 'failed'), true)
                when p_from = 'running' then p_to is null or p_to not in ('completed', 'warning')
                                             or (p_to = 'warning') = (p_warnings > 0)
                else false end
$$;

-- The owner leaves, or changes its run while it stays. p_flags: 1 ended, 2 release the lease, 4 drop the queue row,
-- 8 drop the waits, 16 progress. A null p_facts does not compare the counter of facts from outside. A new
-- execution_seq that nobody holds yet takes the token away: the old one must not fit it.
create or replace function ironflow_leave_v(
    p_floor bigint, p_run text, p_execution_seq bigint, p_token text,
    p_seq bigint, p_kinds text[], p_steps text[], p_payloads text[],
    p_facts bigint, p_state text, p_next_seq bigint, p_flags int,
    p_wait_steps text[], p_wait_kinds text[], p_wait_statuses text[], p_wait_dues bigint[],
    p_route text, p_priority bigint, p_enqueued bigint, p_eligible bigint, p_queue_seq bigint, p_status text
) returns bigint language plpgsql volatile as $$
declare
    v_at bigint;
    v_facts bigint;
    v_limits text;
begin
    loop
        update runs set
            state = coalesce(p_state, state),
            execution_seq = coalesce(p_next_seq, execution_seq),
            lease_token_hash = case when p_next_seq is not null or p_flags & 2 <> 0 then null else lease_token_hash end,
            ended_at = case when p_flags & 1 <> 0 then ironflow_clock_v(p_floor) else ended_at end,
            consecutive_recoveries = case when p_flags & 16 <> 0 then 0 else consecutive_recoveries end,
            charged_recoveries = case when p_flags & 16 <> 0 then 0 else charged_recoveries end
        where run_id = p_run and execution_seq = p_execution_seq and lease_token_hash = p_token
          and ironflow_legal_v(state, p_state, warnings)
          and (p_facts is null or facts = p_facts)
          and (limits is null or p_flags & 2 = 0)
        returning case when p_flags & 1 <> 0 then ended_at else ironflow_clock_v(p_floor) end into v_at;
        exit when found;
        -- Refused: only now is it worth asking why.
        select facts, limits into v_facts, v_limits from runs
        where run_id = p_run and execution_seq = p_execution_seq and lease_token_hash = p_token
          and ironflow_legal_v(state, p_state, warnings)
        for no key update;
        if not found then
            return ironflow_clock_v(p_floor) * 8 + 1;
        elsif p_facts is not null and v_facts <> p_facts then
            return ironflow_clock_v(p_floor) * 8 + 2;
        elsif v_limits is not null and p_flags & 2 <> 0 then
            return ironflow_clock_v(p_floor) * 8 + 7;
        end if;
    end loop;
    if p_flags & 2 <> 0 then
        delete from concurrency_leases where run_id = p_run;
    end if;
    if p_flags & 4 <> 0 then
        delete from dispatch_queue where run_id = p_run;
    end if;
    if p_flags & 8 <> 0 then
        delete from waits where run_id = p_run;
    end if;
    perform ironflow_journal_v(
        p_run, coalesce(p_next_seq, p_execution_seq), v_at, p_seq, p_kinds, p_steps, p_payloads
    );
    if cardinality(p_wait_steps) > 0 then
        insert into waits (run_id, step_id, kind, status, due_at)
        select p_run, w.step, w.kind, w.status, w.due
        from unnest(p_wait_steps, p_wait_kinds, p_wait_statuses, p_wait_dues) as w (step, kind, status, due)
        on conflict (run_id, step_id) do update set kind = excluded.kind, status = excluded.status,
            due_at = excluded.due_at, pre_claim_status = null, claimed_by = null, claimed_at = null;
    end if;
    if p_route is not null then
        perform ironflow_enqueue_v(
            v_at, p_run, p_route, p_priority, p_enqueued, p_eligible, p_queue_seq, p_status
        );
    end if;
    return v_at * 8;
end
$$;

-- A place in the queue. Zero stands for now; what is not eligible yet is `delayed`, unless the caller says otherwise.
create or replace function ironflow_enqueue_v(
    p_at bigint, p_run text, p_route text, p_priority bigint, p_enqueued bigint, p_eligible bigint,
    p_execution_seq bigint, p_status text
) returns void language sql volatile as $$
    insert into dispatch_queue (run_id, route, status, priority, enqueued_at, eligible_at, execution_seq)
    select p_run, p_route,
           case when p_status in ('ready', 'delayed') then case when p_eligible <= p_at then 'ready' else 'delayed' end
                else p_status end,
           p_priority, coalesce(nullif(p_enqueued, 0), p_at), coalesce(nullif(p_eligible, 0), p_at), p_execution_seq
    on conflict do nothing
$$;

-- A new run: with a lease when it starts in the caller's own slot, with a queue row when a worker is to take it.
create or replace function ironflow_create_v(
    p_floor bigint, p_run text, p_org text, p_environment text, p_workflow text, p_version text, p_state text,
    p_execution_seq bigint, p_token text, p_run_priority bigint, p_run_route text, p_root text, p_parent text,
    p_created bigint, p_started bigint, p_deadline bigint, p_scheduled bigint, p_max_recoveries bigint,
    p_input_hash text, p_idempotency_key text, p_concurrency_key text, p_labels text, p_limits text, p_python text,
    p_fence bigint, p_seq bigint, p_kinds text[], p_steps text[], p_payloads text[],
    p_session text, p_ttl bigint, p_executing bigint,
    p_route text, p_priority bigint, p_enqueued bigint, p_eligible bigint, p_queue_seq bigint, p_status text
) returns bigint language plpgsql volatile as $$
declare
    v_at bigint := ironflow_clock_v(p_floor);
begin
    -- What is held may be created, but not executed.
    if p_execution_seq > 0 and exists (
        select from workflow_pauses where org = p_org and environment = p_environment and workflow = p_workflow
    ) then
        return v_at * 8 + 3;
    end if;
    insert into runs (
        run_id, org, environment, workflow, version, state, execution_seq, lease_token_hash, priority, route,
        root_run_id, parent_run_id, created_at, started_at, deadline_at, scheduled_at, max_recoveries, input_hash,
        idempotency_key, concurrency_key, labels, limits, python
    ) values (
        p_run, p_org, p_environment, p_workflow, p_version, p_state, p_execution_seq, p_token, p_run_priority,
        p_run_route, p_root, p_parent, coalesce(nullif(p_created, 0), v_at),
        case when p_session is not null then v_at else p_started end,
        p_deadline, p_scheduled, p_max_recoveries, p_input_hash, p_idempotency_key, p_concurrency_key, p_labels,
        p_limits, p_python
    ) on conflict do nothing;
    if not found then
        return ironflow_clock_v(p_floor) * 8 + 4;
    end if;
    if p_session is not null then
        insert into concurrency_leases (
            run_id, execution_seq, token_hash, session_id, acquired_at, expires_at, executing
        ) values (p_run, p_execution_seq, p_token, p_session, v_at, v_at + p_ttl, p_executing);
    end if;
    if p_route is not null then
        -- `ironflow_enqueue_v` spelled out: the call would cost half as much as the row.
        insert into dispatch_queue (run_id, route, status, priority, enqueued_at, eligible_at, execution_seq)
        values (
            p_run, p_route,
            case when p_status in ('ready', 'delayed')
                 then case when p_eligible <= v_at then 'ready' else 'delayed' end else p_status end,
            p_priority, coalesce(nullif(p_enqueued, 0), v_at), coalesce(nullif(p_eligible, 0), v_at), p_queue_seq
        );
    end if;
    perform ironflow_journal_v(p_run, p_fence, v_at, p_seq, p_kinds, p_steps, p_payloads);
    return v_at * 8;
end
$$;

-- A worker takes a run on: out of the queue (p_queued), or straight from a wait that is due.
-- The run row is locked first and the queue row is deleted by its own conditions, so of two takers one finds nothing.
create or replace function ironflow_activate_v(
    p_floor bigint, p_run text, p_execution_seq bigint, p_facts bigint, p_queued boolean, p_reservation text,
    p_seq bigint, p_kinds text[], p_steps text[], p_payloads text[],
    p_state text, p_next_seq bigint, p_token text, p_flags int,
    p_session text, p_ttl bigint, p_executing bigint
) returns bigint language plpgsql volatile as $$
declare
    v_at bigint;
    v_run record;
begin
    select org, environment, workflow, state, facts, limits into v_run from runs
    where run_id = p_run and execution_seq = p_execution_seq for no key update;
    v_at := ironflow_clock_v(p_floor);
    if not found or (p_facts is not null and v_run.facts <> p_facts) then
        return v_at * 8 + 3;
    end if;
    -- Whoever takes a run and keeps it makes it one or the other; a cancel that was accepted is not taken back.
    if v_run.state = 'cancelling' and p_state <> 'cancelling' then
        return v_at * 8 + 3;
    end if;
    if v_run.limits is not null then
        return v_at * 8 + 7;
    end if;
    if exists (
        select from workflow_pauses
        where org = v_run.org and environment = v_run.environment and workflow = v_run.workflow
    ) then
        return v_at * 8 + 3;
    end if;
    if p_queued then
        delete from dispatch_queue
        where run_id = p_run and reservation_token is not distinct from p_reservation
          and (status in ('ready', 'reserved') or (status = 'delayed' and eligible_at <= v_at));
        if not found then
            return v_at * 8 + 3;
        end if;
    elsif v_run.state not in ('sleeping', 'waiting', 'awaiting_approval') then
        return v_at * 8 + 3;
    end if;
    update runs set
        state = coalesce(p_state, state), execution_seq = p_next_seq, lease_token_hash = p_token,
        started_at = coalesce(started_at, v_at),
        consecutive_recoveries = case when p_flags & 16 <> 0 then 0 else consecutive_recoveries end,
        charged_recoveries = case when p_flags & 16 <> 0 then 0 else charged_recoveries end
    where run_id = p_run;
    if p_flags & 8 <> 0 then
        delete from waits where run_id = p_run;
    end if;
    insert into concurrency_leases (run_id, execution_seq, token_hash, session_id, acquired_at, expires_at, executing)
    values (p_run, p_next_seq, p_token, p_session, v_at, v_at + p_ttl, p_executing);
    perform ironflow_journal_v(p_run, p_next_seq, v_at, p_seq, p_kinds, p_steps, p_payloads);
    return v_at * 8;
end
$$;

-- What is due, a page at a time. Functions, because the planner must not choose here: it takes what is due for a handful
-- (a herd is always news to its statistics), reads all of it and sorts it, so every page of ten thousand timers
-- of one millisecond would cost all of them. In the order of the index a page costs its rows (a test counts them).
--
-- One status at a time, so that the index gives the order. Runs with lanes and runs of paused workflows are left to the
-- claim, which puts them into the queue.
create or replace function ironflow_due_v(p_now bigint, p_limit bigint, p_routes text[])
returns table (
    run text, workflow text, version text, state text, route text, root text, created bigint, execution_seq bigint,
    facts bigint, attempt bigint, priority bigint, consecutive bigint, charged bigint, compensating text,
    deadline bigint, warnings bigint, limits text, due bigint
) language plpgsql volatile rows 50
set enable_sort = off set enable_bitmapscan = off set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off as $$
begin
    return query
        select h.* from unnest(array['sleeping', 'waiting', 'retry_backoff']) as s (status)
        cross join lateral (
            -- The columns of a head (`columns.sql`), so that nobody has to find the rows a second time.
            select r.run_id, r.workflow, r.version, r.state, r.route, r.root_run_id, r.created_at, r.execution_seq,
                   r.facts, r.attempt, r.priority, r.consecutive_recoveries, r.charged_recoveries, r.compensating_for,
                   r.deadline_at, r.warnings, r.limits, w.due_at
            from waits w join runs r on r.run_id = w.run_id
            where w.status = s.status and w.due_at <= p_now
              and r.state in ('sleeping', 'waiting', 'awaiting_approval') and r.limits is null
              and r.route = any(p_routes)
              and not exists (
                  select 1 from workflow_pauses p
                  where p.org = r.org and p.environment = r.environment and p.workflow = r.workflow)
            order by w.due_at limit p_limit
        ) h
        order by h.due_at limit p_limit;
end
$$;

-- The same for the waker, which claims what it finds: waits of runs that nobody holds and that are in no queue.
create or replace function ironflow_claim_due_v(p_now bigint, p_limit bigint, p_node text)
returns table (
    run text, step text, kind text, status text, due bigint, pre_claim_status text, claimed_by text, claimed_at bigint
) language plpgsql volatile rows 50
set enable_sort = off set enable_bitmapscan = off set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
begin
    return query
        with due as materialized (
            select h.* from unnest(array['sleeping', 'waiting', 'retry_backoff']) as s (status)
            cross join lateral (
                select w.run_id, w.step_id, w.due_at from waits w join runs r on r.run_id = w.run_id
                where w.status = s.status and w.due_at <= p_now
                  and r.state in ('sleeping', 'waiting', 'awaiting_approval')
                  and not exists (select 1 from concurrency_leases c where c.run_id = w.run_id)
                  and not exists (select 1 from dispatch_queue q where q.run_id = w.run_id)
                order by w.due_at limit p_limit for update of w skip locked
            ) h
            order by h.due_at limit p_limit
        )
        update waits w set pre_claim_status = w.status, status = 'waking', claimed_by = p_node, claimed_at = p_now
        from due where w.run_id = due.run_id and w.step_id = due.step_id
        returning w.run_id, w.step_id, w.kind, w.status, w.due_at, w.pre_claim_status, w.claimed_by, w.claimed_at;
end
$$;

-- The next due time of a run that waits, or of a place in the queue. A wait of a run that is paused, queued or executing
-- wants nothing of a waker: its due time must not wake one.
create or replace function ironflow_next_due_v()
returns bigint language plpgsql volatile
set enable_sort = off set enable_bitmapscan = off set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off as $$
begin
    return least(
        (select min(eligible_at) from dispatch_queue where status = 'delayed'),
        (select min(h.due_at) from unnest(array['sleeping', 'waiting', 'retry_backoff']) as s (status)
         cross join lateral (
             select w.due_at from waits w join runs r on r.run_id = w.run_id
             where w.status = s.status and w.due_at is not null
               and r.state in ('sleeping', 'waiting', 'awaiting_approval')
             order by w.due_at limit 1
         ) h)
    );
end
$$;

-- Lock runs with all their rows, and read them: what a decision sees. One call, because a takeover waits for it; a
-- function, because each statement of one sees what is committed when *it* begins. So the rows are read after the
-- locks, however long those were waited for. (In a single statement the number of the last event would be from before.)
-- One row per run that was locked. Rows come as JSON, so that the driver need not ask for their types.
create or replace function ironflow_look_v(p_floor bigint, p_ids text[], p_skip_locked boolean)
returns table (at bigint, run text, last_seq bigint, queue text, lease text, waits text)
language plpgsql volatile set enable_seqscan = off as $$
declare
    v_ids text[];
    v_at bigint;
begin
    if p_skip_locked then
        with held as materialized (
            select r.run_id from runs r where r.run_id = any(p_ids) order by r.run_id for no key update skip locked
        )
        select array_agg(h.run_id) into v_ids from held h;
    else
        with held as materialized (
            select r.run_id from runs r where r.run_id = any(p_ids) order by r.run_id for no key update
        )
        select array_agg(h.run_id) into v_ids from held h;
    end if;
    -- Goes on even if nothing was locked: a rehearsal plans what follows, too.
    perform 1 from dispatch_queue d where d.run_id = any(v_ids) order by d.run_id for update;
    perform 1 from concurrency_leases c where c.run_id = any(v_ids) order by c.run_id for update;
    perform 1 from waits w where w.run_id = any(v_ids) order by w.run_id, w.step_id for update;
    v_at := ironflow_clock_v(p_floor);
    return query
        select v_at, row_to_json(r)::text,
               coalesce((select max(e.seq) from journal_events e where e.run_id = r.run_id), 0),
               (select row_to_json(d)::text from dispatch_queue d where d.run_id = r.run_id),
               (select row_to_json(c)::text from concurrency_leases c where c.run_id = r.run_id),
               (select json_agg(w)::text from waits w where w.run_id = r.run_id)
        from runs r where r.run_id = any(v_ids) order by r.run_id;
end
$$;
