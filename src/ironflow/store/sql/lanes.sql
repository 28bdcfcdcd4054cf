-- Lanes: who holds a place in one, and who waits for one. On PostgreSQL their rows in `lanes` are locked first; on
-- SQLite the write transaction is the lock.

-- name: lanes_of
select run_id, lane, lane_limit from run_lanes
where run_id /*postgres: = any(cast(:ids as text[])) */ /*sqlite: in (select value from json_each(:ids)) */
order by lane, run_id

-- Who counts in these lanes: what executes and what is promised. `cross join` and the order of the tables: from what is
-- held to its lanes, so that neither the history of a lane nor its backlog costs anything.
-- name: lane_places
select l.lane, l.run_id from concurrency_leases c cross join run_lanes l
where l.run_id = c.run_id
  and l.lane /*postgres: = any(cast(:lanes as text[])) */ /*sqlite: in (select value from json_each(:lanes)) */
union
select l.lane, l.run_id from dispatch_queue q cross join run_lanes l
where q.status = 'reserved' and q.reserved_until > :now and l.run_id = q.run_id
  and l.lane /*postgres: = any(cast(:lanes as text[])) */ /*sqlite: in (select value from json_each(:lanes)) */

-- name: blocked_next
select q.run_id, l.lane_limit from dispatch_queue q cross join run_lanes l
where q.blocked_lane = :lane and l.run_id = q.run_id and l.lane = q.blocked_lane
order by q.priority desc, q.enqueued_at, q.run_id limit :limit /*postgres: for update of q skip locked */

-- name: unblock
update dispatch_queue set status = 'ready', blocked_lane = null
where run_id /*postgres: = any(cast(:ids as text[])) */ /*sqlite: in (select value from json_each(:ids)) */

-- name: blocked_lanes
select distinct blocked_lane from dispatch_queue where blocked_lane is not null order by blocked_lane
