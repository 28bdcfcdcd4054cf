-- What the loops look for. Each is a question; the answer is decided again on the locked run.

-- name: expired_leases
select run_id from concurrency_leases
where expires_at <= :now and run_id > :after
order by run_id limit :limit

-- name: expired_reservations
select run_id from dispatch_queue where status = 'reserved' and reserved_until <= :now
order by run_id limit :limit

-- name: expired_sessions
select {session_columns} from worker_sessions where expires_at <= :now order by expires_at limit :limit

-- A deadline that passed while nobody executes the run: its owner would have ended it.
-- name: overdue
select r.run_id from runs r
where r.ended_at is null and r.deadline_at <= :older_than
  and (r.state in ('sleeping', 'waiting', 'awaiting_approval')
       or (r.state in ('pending', 'retrying') and r.compensations = 0))
  and not exists (select 1 from concurrency_leases c where c.run_id = r.run_id)
order by r.deadline_at limit :limit

-- name: stale_claims
select distinct w.run_id from waits w
where w.status = 'waking' and w.claimed_at < :older_than
  and not exists (select 1 from concurrency_leases c where c.run_id = w.run_id)
  and not exists (select 1 from dispatch_queue q where q.run_id = w.run_id)
order by w.run_id limit :limit

-- A run that says it is owned or queued while nothing holds it: no crash makes one, so finding one is an alarm. Since
-- nothing marks such a run, live ones are walked, a page each time; `last` is where the next page begins, and `page`
-- how long this one was. There is always a row; without a find its run_id is null.
-- name: unowned
with live as materialized (
    select run_id, state, coalesce(started_at, created_at) as since from runs
    where ended_at is null and run_id > :after order by run_id limit :page
), walked as (
    select max(run_id) as last, count(*) as page from live
), found as (
    select l.run_id from live l
    where l.state in ('pending', 'running', 'retrying', 'cancelling') and l.since <= :older_than
      and not exists (select 1 from concurrency_leases c where c.run_id = l.run_id)
      and not exists (select 1 from dispatch_queue q where q.run_id = l.run_id)
    order by l.run_id limit :limit
)
select f.run_id, w.last, w.page from walked w left join found f on true order by f.run_id

-- The last run of a page of those of a scope that were created by a time, oldest first; none where it is not full.
-- name: page_end
select created_at, run_id from runs
where org = :org and environment = :environment and created_at <= :created_by
  and (created_at, run_id) > (cast(:after_at as bigint), cast(:after_id as text))
order by created_at, run_id limit 1 offset cast(:page as bigint) - 1

-- Roots on such a page that ended long ago, with the length of their journal, along the index of the lists: it is read
-- no further than the last find. A root with a child that goes on (or ended later) is no find; what is further below is
-- looked at under the lock.
-- name: expired_trees
select r.run_id, r.created_at, (select max(e.seq) from journal_events e where e.run_id = r.run_id) as events
from runs r
where r.org = :org and r.environment = :environment
  and (r.created_at, r.run_id) > (cast(:after_at as bigint), cast(:after_id as text))
  and (r.created_at, r.run_id) <= (cast(:until_at as bigint), cast(:until_id as text))
  and r.parent_run_id is null and r.ended_at <= :ended_before
  and not exists (
      select 1 from runs c
      where c.parent_run_id = r.run_id and (c.ended_at is null or c.ended_at > :ended_before))
order by r.created_at, r.run_id limit :limit
