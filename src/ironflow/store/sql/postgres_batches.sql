-- Many runs, one statement, one round trip, no BEGIN. Each has the same skeleton:
--
--   item   what the callers ask for, numbered
--   held   their run rows, locked in order of id, so that two statements never wait for each other crosswise
--   clock  the time, read after the last lock
--   judged the verdict on each item, from the locked rows (a row that changed while we waited shows its new values)
--   …      the writes, each joined to the survivors
--
-- and the same answer: the time, and the refused items as `number * 8 + answer`. The answers and the flags are those
-- of the one-run functions. Arrays are joined by unnest: indexing a text[] walks it from its start every time.

-- name: append_many
with item as (
    select * from unnest(:runs::text[], :seqs::bigint[], :tokens::text[])
        with ordinality as i (run_id, execution_seq, token, n)
), held as materialized (
    select run_id, execution_seq, lease_token_hash, state from runs
    where run_id = any(:runs::text[]) order by run_id for no key update
), clock as materialized (
    select ironflow_clock_v(:floor::bigint) as at from (select count(*) from held) as locked
), judged as materialized (
    select i.n, i.run_id, i.execution_seq,
           h.execution_seq is not distinct from i.execution_seq and h.lease_token_hash = i.token
               and h.state in ('running', 'cancelling') as fits
    from item i left join held h using (run_id)
), journal as (
    insert into journal_events (run_id, seq, kind, step_id, payload, execution_seq, at)
    select j.run_id, e.seq, e.kind, e.step, e.payload, j.execution_seq, (select at from clock)
    from unnest(:event_items::bigint[], :event_seqs::bigint[], :event_kinds::text[], :event_steps::text[],
                :event_payloads::text[]) as e (n, seq, kind, step, payload)
    join judged j on j.n = e.n and j.fits
)
select at, array(select n * 8 + 1 from judged where fits is not true) as refused from clock

-- name: leave_many
with item as (
    select * from unnest(:runs::text[], :seqs::bigint[], :tokens::text[], :facts::bigint[], :states::text[],
                         :next_seqs::bigint[], :flags::int[])
        with ordinality as i (run_id, execution_seq, token, facts, state, next_seq, flags, n)
), held as materialized (
    select run_id, execution_seq, lease_token_hash, state, facts, limits, warnings from runs
    where run_id = any(:runs::text[]) order by run_id for no key update
), clock as materialized (
    select ironflow_clock_v(:floor::bigint) as at from (select count(*) from held) as locked
), judged as materialized (
    select i.n, i.run_id, i.state, i.flags, i.next_seq, coalesce(i.next_seq, i.execution_seq) as execution_seq,
           case when h.run_id is null or h.execution_seq <> i.execution_seq
                     or h.lease_token_hash is distinct from i.token
                     or not ironflow_legal_v(h.state, i.state, h.warnings) then 1
                when i.facts <> h.facts then 2
                when h.limits is not null and i.flags & 2 <> 0 then 7
                else 0 end as answer
    from item i left join held h using (run_id)
), changed as (
    update runs r set
        state = coalesce(j.state, r.state),
        execution_seq = j.execution_seq,
        lease_token_hash = case when j.next_seq is not null or j.flags & 2 <> 0 then null else r.lease_token_hash end,
        ended_at = case when j.flags & 1 <> 0 then (select at from clock) else r.ended_at end,
        consecutive_recoveries = case when j.flags & 16 <> 0 then 0 else r.consecutive_recoveries end,
        charged_recoveries = case when j.flags & 16 <> 0 then 0 else r.charged_recoveries end
    from judged j
    where r.run_id = j.run_id and j.answer = 0
      and (j.state is not null or j.next_seq is not null or j.flags <> 0)
), released as (
    delete from concurrency_leases using judged j
    where concurrency_leases.run_id = j.run_id and j.answer = 0 and j.flags & 2 <> 0
), dequeued as (
    delete from dispatch_queue using judged j
    where dispatch_queue.run_id = j.run_id and j.answer = 0 and j.flags & 4 <> 0
    returning dispatch_queue.run_id
), cleared as (
    delete from waits using judged j
    where waits.run_id = j.run_id and j.answer = 0 and j.flags & 8 <> 0
    returning waits.run_id
), journal as (
    insert into journal_events (run_id, seq, kind, step_id, payload, execution_seq, at)
    select j.run_id, e.seq, e.kind, e.step, e.payload, j.execution_seq, (select at from clock)
    from unnest(:event_items::bigint[], :event_seqs::bigint[], :event_kinds::text[], :event_steps::text[],
                :event_payloads::text[]) as e (n, seq, kind, step, payload)
    join judged j on j.n = e.n and j.answer = 0
), waiting as (
    -- The count makes the delete above run first: the parts of a statement have no order of their own.
    insert into waits (run_id, step_id, kind, status, due_at)
    select j.run_id, w.step, w.kind, w.status, w.due
    from unnest(:wait_items::bigint[], :wait_steps::text[], :wait_kinds::text[], :wait_statuses::text[],
                :wait_dues::bigint[]) as w (n, step, kind, status, due)
    join judged j on j.n = w.n and j.answer = 0
    where (select count(*) from cleared) >= 0
    on conflict (run_id, step_id) do update set kind = excluded.kind, status = excluded.status,
        due_at = excluded.due_at, pre_claim_status = null, claimed_by = null, claimed_at = null
), queued as (
    insert into dispatch_queue (run_id, route, status, priority, enqueued_at, eligible_at, execution_seq)
    select j.run_id, q.route,
           case when q.status in ('ready', 'delayed') then case when q.eligible <= c.at then 'ready' else 'delayed' end
                else q.status end,
           q.priority, coalesce(nullif(q.enqueued, 0), c.at), coalesce(nullif(q.eligible, 0), c.at), q.execution_seq
    from unnest(:queue_items::bigint[], :queue_routes::text[], :queue_priorities::bigint[], :queue_enqueued::bigint[],
                :queue_eligible::bigint[], :queue_seqs::bigint[], :queue_statuses::text[])
        as q (n, route, priority, enqueued, eligible, execution_seq, status)
    join judged j on j.n = q.n and j.answer = 0
    cross join clock c
    where (select count(*) from dequeued) >= 0
    on conflict do nothing
)
select at, array(select n * 8 + answer from judged where answer <> 0) as refused from clock

-- name: create_many
with item as (
    select * from unnest(
        :runs::text[], :orgs::text[], :environments::text[], :workflows::text[], :versions::text[], :states::text[],
        :seqs::bigint[], :tokens::text[], :priorities::bigint[], :routes::text[], :roots::text[], :parents::text[],
        :created::bigint[], :started::bigint[], :deadlines::bigint[], :scheduled::bigint[], :max_recoveries::bigint[],
        :input_hashes::text[], :idempotency_keys::text[], :concurrency_keys::text[], :labels::text[],
        :limits::text[], :pythons::text[], :fences::bigint[], :sessions::text[], :ttls::bigint[], :executing::bigint[]
    ) with ordinality as i (
        run_id, org, environment, workflow, version, state, execution_seq, token, priority, route, root_run_id,
        parent_run_id, created_at, started_at, deadline_at, scheduled_at, max_recoveries, input_hash,
        idempotency_key, concurrency_key, labels, limits, python, fence, session_id, ttl, executing, n
    )
), clock as materialized (
    select ironflow_clock_v(:floor::bigint) as at
), held as materialized (
    select n from item i
    where execution_seq > 0 and exists (
        select from workflow_pauses p
        where p.org = i.org and p.environment = i.environment and p.workflow = i.workflow)
), created as (
    insert into runs (
        run_id, org, environment, workflow, version, state, execution_seq, lease_token_hash, priority, route,
        root_run_id, parent_run_id, created_at, started_at, deadline_at, scheduled_at, max_recoveries, input_hash,
        idempotency_key, concurrency_key, labels, limits, python
    )
    select run_id, org, environment, workflow, version, state, execution_seq, token, priority, route, root_run_id,
           parent_run_id, coalesce(nullif(created_at, 0), c.at),
           case when session_id is not null then c.at else started_at end,
           deadline_at, scheduled_at, max_recoveries, input_hash, idempotency_key, concurrency_key, labels, limits,
           python
    from item cross join clock c
    where n not in (select n from held)
    on conflict do nothing
    returning run_id
), fresh as materialized (
    select i.n, i.run_id, i.execution_seq, i.fence, i.token, i.session_id, i.ttl, i.executing
    from item i join created using (run_id)
), leased as (
    insert into concurrency_leases (run_id, execution_seq, token_hash, session_id, acquired_at, expires_at, executing)
    select run_id, execution_seq, token, session_id, c.at, c.at + ttl, executing
    from fresh cross join clock c where session_id is not null
), journal as (
    insert into journal_events (run_id, seq, kind, step_id, payload, execution_seq, at)
    select f.run_id, e.seq, e.kind, e.step, e.payload, f.fence, (select at from clock)
    from unnest(:event_items::bigint[], :event_seqs::bigint[], :event_kinds::text[], :event_steps::text[],
                :event_payloads::text[]) as e (n, seq, kind, step, payload)
    join fresh f on f.n = e.n
), queued as (
    insert into dispatch_queue (run_id, route, status, priority, enqueued_at, eligible_at, execution_seq)
    select f.run_id, q.route,
           case when q.status in ('ready', 'delayed') then case when q.eligible <= c.at then 'ready' else 'delayed' end
                else q.status end,
           q.priority, coalesce(nullif(q.enqueued, 0), c.at), coalesce(nullif(q.eligible, 0), c.at), q.execution_seq
    from unnest(:queue_items::bigint[], :queue_routes::text[], :queue_priorities::bigint[], :queue_enqueued::bigint[],
                :queue_eligible::bigint[], :queue_seqs::bigint[], :queue_statuses::text[])
        as q (n, route, priority, enqueued, eligible, execution_seq, status)
    join fresh f on f.n = q.n
    cross join clock c
)
select at,
       array(
           select n * 8 + case when n in (select n from held) then 3 else 4 end
           from item where not exists (select from fresh f where f.n = item.n)
       ) as refused
from clock

-- name: activate_many
with item as (
    select * from unnest(:runs::text[], :seqs::bigint[], :facts::bigint[], :queued::boolean[], :reservations::text[],
                         :states::text[], :next_seqs::bigint[], :tokens::text[], :flags::int[], :sessions::text[],
                         :ttls::bigint[], :executing::bigint[])
        with ordinality as i (run_id, execution_seq, facts, queued, reservation, state, next_seq, token, flags,
                              session_id, ttl, executing, n)
), held as materialized (
    select run_id, org, environment, workflow, execution_seq, state, facts, limits from runs
    where run_id = any(:runs::text[]) order by run_id for no key update
), clock as materialized (
    select ironflow_clock_v(:floor::bigint) as at from (select count(*) from held) as locked
), judged as materialized (
    select i.*,
           case when h.run_id is null or h.execution_seq <> i.execution_seq or i.facts <> h.facts
                     or (h.state = 'cancelling' and i.state <> 'cancelling') then 3
                when h.limits is not null then 7
                when exists (
                    select from workflow_pauses p
                    where p.org = h.org and p.environment = h.environment and p.workflow = h.workflow) then 3
                when not i.queued and h.state not in ('sleeping', 'waiting', 'awaiting_approval') then 3
                else 0 end as answer
    from item i left join held h using (run_id)
), dequeued as (
    delete from dispatch_queue q using judged j cross join clock c
    where q.run_id = j.run_id and j.queued and j.answer = 0
      and q.reservation_token is not distinct from j.reservation
      and (q.status in ('ready', 'reserved') or (q.status = 'delayed' and q.eligible_at <= c.at))
    returning q.run_id
), taken as materialized (
    select j.* from judged j
    where j.answer = 0 and (not j.queued or j.run_id in (select run_id from dequeued))
), changed as (
    update runs r set
        state = coalesce(t.state, r.state), execution_seq = t.next_seq, lease_token_hash = t.token,
        started_at = coalesce(r.started_at, (select at from clock)),
        consecutive_recoveries = case when t.flags & 16 <> 0 then 0 else r.consecutive_recoveries end,
        charged_recoveries = case when t.flags & 16 <> 0 then 0 else r.charged_recoveries end
    from taken t where r.run_id = t.run_id
), cleared as (
    delete from waits using taken t where waits.run_id = t.run_id and t.flags & 8 <> 0
), leased as (
    insert into concurrency_leases (run_id, execution_seq, token_hash, session_id, acquired_at, expires_at, executing)
    select run_id, next_seq, token, session_id, c.at, c.at + ttl, executing from taken cross join clock c
), journal as (
    insert into journal_events (run_id, seq, kind, step_id, payload, execution_seq, at)
    select t.run_id, e.seq, e.kind, e.step, e.payload, t.next_seq, (select at from clock)
    from unnest(:event_items::bigint[], :event_seqs::bigint[], :event_kinds::text[], :event_steps::text[],
                :event_payloads::text[]) as e (n, seq, kind, step, payload)
    join taken t on t.n = e.n
)
select at, array(
    select n * 8 + case when answer = 0 then 3 else answer end from judged
    where not exists (select from taken t where t.n = judged.n)
) as refused
from clock
