-- The dispatch queue: in which order segments are handed out, and to whom they are promised.

-- One step along the index per route, so that a backlog of any length costs nothing.
-- name: queue_routes
with recursive seen (route) as (
    select min(route) from dispatch_queue
    union all
    select (select min(q.route) from dispatch_queue q where q.route > s.route) from seen s where s.route is not null
)
select route from seen where route is not null

-- Reads an entry of an index per segment: for people and their graphs, not for loops.
-- name: backlog
select route, coalesce(blocked_lane, ''), count(*) from dispatch_queue where status in ('ready', 'blocked') group by 1, 2

-- A wait of a run that is paused, queued or executing wants nothing of a waker: its due time must not wake one.
-- name: next_due
/*postgres: select ironflow_next_due_v() */
/*sqlite:
select min(at) from (
    select min(eligible_at) as at from dispatch_queue where status = 'delayed'
    union all
    select * from (select w.due_at as at from waits w cross join runs r
        where w.status = 'sleeping' and w.due_at is not null and r.run_id = w.run_id
          and r.state in ('sleeping', 'waiting', 'awaiting_approval') order by w.due_at limit 1) s
    union all
    select * from (select w.due_at as at from waits w cross join runs r
        where w.status = 'waiting' and w.due_at is not null and r.run_id = w.run_id
          and r.state in ('sleeping', 'waiting', 'awaiting_approval') order by w.due_at limit 1) s
    union all
    select * from (select w.due_at as at from waits w cross join runs r
        where w.status = 'retry_backoff' and w.due_at is not null and r.run_id = w.run_id
          and r.state in ('sleeping', 'waiting', 'awaiting_approval') order by w.due_at limit 1) s
) earliest
*/
