-- What the loops and the heart do on PostgreSQL. A sweep never waits for a row: what somebody else has in hand is
-- skipped, and found again at the next tick if it is still there. Loaded together with `columns`.

-- ---- the queue

-- One walk along the index per route, each no longer than the page, then one order over all of them: rows that are
-- blocked, delayed, reserved or of another route are never touched.
-- name: peek_routes
select h.* from unnest(:routes::text[], :orgs::text[], :environments::text[], :workflows::text[])
    as t (route, org, environment, workflow)
cross join lateral (
    select {head_columns}, q.reservation_token, q.priority as queue_priority, q.enqueued_at
    from dispatch_queue q join runs r on r.run_id = q.run_id
    where q.route = t.route and q.status = 'ready'
      and not exists (
          select 1 from workflow_pauses p
          where p.org = t.org and p.environment = t.environment and p.workflow = t.workflow)
    order by q.priority desc, q.enqueued_at, q.run_id
    limit :limit
) h
order by h.queue_priority desc, h.enqueued_at, h.run_id limit :limit

-- name: lock_ready
select run_id from dispatch_queue where run_id = any(:ids::text[]) and status = 'ready'
order by run_id for update skip locked

-- name: reserve_rows
update dispatch_queue q set status = 'reserved', reserved_by = :session_id, reserved_until = :until,
    reservation_token = v.token
from unnest(:ids::text[], :tokens::text[]) as v (run_id, token) where q.run_id = v.run_id

-- name: unreserve_rows
with mine as materialized (
    select q.run_id from dispatch_queue q
    join unnest(:ids::text[], :tokens::text[]) as v (run_id, token)
      on q.run_id = v.run_id and q.reservation_token = v.token
    where q.status = 'reserved' order by q.run_id for update of q
)
update dispatch_queue q set status = 'ready', reserved_by = null, reservation_token = null, reserved_until = null
from mine where q.run_id = mine.run_id
returning q.run_id

-- Asked on every tick, so that a tick with nothing to do takes no lock. It is also what keeps the clock of an idle
-- process right.
-- name: promotable
with clock (at) as materialized (select ironflow_clock_v(:floor::bigint))
select at, exists (select 1 from dispatch_queue where status = 'delayed' and eligible_at <= clock.at)
    or exists (select 1 from dispatch_queue where blocked_lane is not null)
from clock

-- Rows are counted as they are locked: what somebody else has in hand takes no place in the page. Nothing is waited for,
-- so the earliest may come first, whatever their ids.
-- name: promote_due
with due as materialized (
    select run_id from dispatch_queue where status = 'delayed' and eligible_at <= :now
    order by eligible_at limit :limit for update skip locked
)
update dispatch_queue q set status = 'ready' from due where q.run_id = due.run_id returning q.run_id

-- ---- waits

-- name: due_of_any
select * from ironflow_due_v(:now::bigint, :limit::bigint, :routes::text[])

-- name: claim_due
select * from ironflow_claim_due_v(:now::bigint, :limit::bigint, :node::text)

-- Who listens holds an advisory lock under the number of his name; two names of one number look alive together.
-- name: gone_claimers
select distinct w.claimed_by from waits w
where w.status = 'waking' and w.claimed_by is not null
  and not exists (
      select 1 from pg_locks l
      where l.locktype = 'advisory' and l.granted and l.objsubid = 2 and l.classid = :presence::bigint::oid
        and l.objid = (hashtext(w.claimed_by)::bigint & 4294967295)::oid
        and l.database = (select d.oid from pg_database d where d.datname = current_database()))

-- Who shows that he watches says so at each of his passes; one that stands still keeps his lock, and says nothing.
-- name: watched
select exists (
    select 1 from pg_locks l join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'advisory' and l.granted and l.objsubid = 2 and l.classid = :watch::bigint::oid and l.objid = 0
      and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and a.state_change > clock_timestamp() - make_interval(secs => :seconds::double precision))

-- ---- sessions

-- How a session ends, if `ended` says so. Leases are waited for (whoever has one in hand is about to release it); a queue
-- row that is locked is left alone: its segment is being activated right now.
-- fragment: ending
held as materialized (
    select run_id from concurrency_leases
    where session_id = :session_id and (select yes from ended) order by run_id for update
), promised as materialized (
    select run_id from dispatch_queue
    where status = 'reserved' and reserved_by = :session_id and (select yes from ended)
    order by run_id for update skip locked
), expired as (
    update concurrency_leases l set expires_at = least(l.expires_at, c.at)
    from held h cross join clock c where l.run_id = h.run_id
), freed as (
    update dispatch_queue q set reserved_until = least(q.reserved_until, c.at)
    from promised p cross join clock c where q.run_id = p.run_id
)
select c.at, array(select run_id from held order by run_id) as held, (select yes from ended) as ended from clock c

-- One statement, because it stands between a death and the next owner. A goodbye said twice still finds what the first
-- one left.
-- name: close_session
with clock as materialized (
    select ironflow_clock_v(:floor::bigint) as at
), gone as (
    delete from worker_sessions where session_id = :session_id
), ended as (
    select true as yes
), {ending}

-- A heartbeat that came first wins: its row is looked at again once it is locked.
-- name: expire_session
with clock as materialized (
    select ironflow_clock_v(:floor::bigint) as at
), mass as materialized ({mass}
), gone as (
    delete from worker_sessions s using clock c
    where s.session_id = :session_id
      and (s.expires_at <= c.at
           or (s.suspect_since <= :until::bigint and s.session_id not in (select session_id from mass)))
    returning s.session_id
), ended as (
    select exists (select from gone) as yes
), {ending}

-- ---- the heart

-- One statement per beat. It never waits: a lease that somebody works on right now is skipped and asked about below.
-- name: beat
with clock as materialized (
    select ironflow_clock_v(:floor::bigint) as at
), alive as (
    update worker_sessions set heartbeat_at = c.at, expires_at = c.at + :session_ttl::bigint, credits = :credits::bigint,
        suspect_since = null
    from clock c where session_id = :session_id returning session_id, draining
), held as (
    select * from unnest(:ids::text[], :seqs::bigint[], :tokens::text[], :executing::boolean[])
        with ordinality as h (run_id, execution_seq, token, executing, n)
), free as materialized (
    select l.run_id, h.executing, h.n from concurrency_leases l
    join held h on h.run_id = l.run_id and h.execution_seq = l.execution_seq and h.token = l.token_hash
    where l.session_id = (select session_id from alive)
    order by l.run_id for update of l skip locked
), renewed as (
    update concurrency_leases l set expires_at = c.at + :lease_ttl::bigint,
        executing = case when f.executing then 1 else 0 end
    from free f cross join clock c where l.run_id = f.run_id returning l.run_id
)
select c.at, exists (select from alive) as alive, (select draining from alive) as draining,
       array(select f.n from free f where f.run_id in (select run_id from renewed)) as renewed
from clock c

-- Asked about what was skipped: is the lease still ours? Reads what is committed and waits for nobody.
-- name: still_held
select h.n from concurrency_leases l
join unnest(:ids::text[], :seqs::bigint[], :tokens::text[]) with ordinality as h (run_id, execution_seq, token, n)
  on h.run_id = l.run_id and h.execution_seq = l.execution_seq and h.token = l.token_hash
where l.session_id = :session_id

-- ---- what is deleted

-- For this transaction: along the indexes, whatever the planner thinks. It takes a young table for a small one, and one
-- that is emptied again and again (`retention_passes`) for an empty one, and would read all of it for each row.
-- name: straight
select set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)

-- ---- what a node asks

-- The limit keeps every plan at one step along the index for each place.
-- name: events_at
select e.run_id, {event_columns}
from unnest(:ids::text[], :seqs::bigint[]) as a (run_id, seq)
cross join lateral (select * from journal_events j where j.run_id = a.run_id and j.seq = a.seq limit 1) e

-- For whoever follows runs: what came after the event each was last seen with, so many of each at most.
-- name: tail
select a.run_id, {slim_event_columns}
from unnest(:ids::text[], :after::bigint[]) as a (run_id, after)
cross join lateral (
    select * from journal_events j where j.run_id = a.run_id and j.seq > a.after order by j.seq limit :limit
) e
order by a.run_id, e.seq

-- Two nodes may tell of one key at the same time: the latest time stays, and a row that somebody holds is skipped.
-- name: used_keys
with used as materialized (
    select k.key_id, u.at from api_keys k
    join unnest(:ids::text[], :times::bigint[]) as u (key_id, at) on u.key_id = k.key_id
    where k.last_used_at is null or k.last_used_at < u.at
    order by k.key_id for no key update of k skip locked
)
update api_keys k set last_used_at = used.at from used where k.key_id = used.key_id

-- ---- the server itself

-- name: health
select current_setting('server_version_num')::int as version, current_setting('server_version') as version_text,
       current_setting('fsync') as fsync, current_setting('full_page_writes') as full_page_writes,
       current_setting('synchronous_commit') as synchronous_commit, pg_is_in_recovery() as standby,
       coalesce((select checksum_failures from pg_stat_database where datname = current_database()), 0) as failures

-- name: send
select pg_notify(:channel, payload) from unnest(:payloads::text[]) as p (payload)
