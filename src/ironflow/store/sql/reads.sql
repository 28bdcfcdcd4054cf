-- What people and the engine read: runs, journals, what is held, what was written down.

-- name: run
select {run_columns} from runs where run_id = :run_id

-- name: standings
select r.run_id, r.org, r.environment, r.workflow, r.route, r.priority, r.execution_seq, r.facts, r.lease_token_hash,
       coalesce((select max(e.seq) from journal_events e where e.run_id = r.run_id), 0)
from runs r
where r.run_id /*postgres: = any(cast(:ids as text[])) */ /*sqlite: in (select value from json_each(:ids)) */

-- Newest first, keyset by (created_at, run_id); a page costs its own length, wherever it starts. A NUL is JSON, but no
-- text of PostgreSQL's: labels with one match nothing there, instead of failing the whole list. The tags of a route
-- begin after its second separator (see `model.ids.route_of`).
-- name: runs
select {run_columns} from runs
where org = :org and environment = :environment
  and (created_at, run_id) < (cast(:before_at as bigint), cast(:before_id as text))
  and created_at >= cast(:created_from as bigint)
  and (cast(:any_state as boolean) or state /*postgres: = any(cast(:states as text[])) */
       /*sqlite: in (select value from json_each(:states)) */)
  and (cast(:workflow as text) is null or workflow = cast(:workflow as text))
  and (cast(:reason as text) is null or reason = cast(:reason as text))
  and (cast(:priority as bigint) is null or priority = cast(:priority as bigint))
  and (cast(:worker_tag as text) is null
       or /*postgres: cast(:worker_tag as text) = any((string_to_array(route, chr(31)))[3:]) */
       /*sqlite: instr(substr(substr(route || char(31), instr(route, char(31)) + 1),
                              instr(substr(route || char(31), instr(route, char(31)) + 1), char(31))),
                       char(31) || :worker_tag || char(31)) > 0 */)
  and (cast(:label as text) is null
       or /*postgres: case when position('\u0000' in labels) = 0
              then cast(labels as jsonb) ->> cast(:label as text) = cast(:label_value as text) end */
       /*sqlite: exists (select 1 from json_each(labels) j where j.key = :label and j.value = :label_value) */)
order by created_at desc, run_id desc
limit :limit

-- Whose runs there are: a step along the index for each organisation and each of its environments.
-- name: scopes
with recursive orgs (org) as (
    select min(org) from runs
    union all
    select (select min(r.org) from runs r where r.org > o.org) from orgs o where o.org is not null
), scopes (org, environment) as (
    select o.org, (select min(r.environment) from runs r where r.org = o.org) from orgs o where o.org is not null
    union all
    select s.org, (select min(r.environment) from runs r where r.org = s.org and r.environment > s.environment)
    from scopes s where s.environment is not null
)
select org, environment from scopes where environment is not null order by org, environment

-- name: find_idempotency_key
select {run_columns} from runs
where org = :org and environment = :environment and workflow = :workflow and idempotency_key = :value

-- name: find_concurrency_key
select {run_columns} from runs
where org = :org and environment = :environment and concurrency_key = :value and ended_at is null

-- name: journal
select {event_columns} from journal_events e
where e.run_id = :run_id and e.seq > :after
order by e.seq limit :limit

-- name: last_event
select {event_columns} from journal_events e where e.run_id = :run_id order by e.seq desc limit 1

-- The kinds are those of `model.journal.VALUE_KINDS`; a test compares the two.
-- name: outline
select e.seq, e.kind, e.step_id,
       case when e.payload is null then
           (select case when e.kind in ('run_created', 'run_succeeded', 'step_completed', 'value_recorded',
                                        'compensation_registered', 'output_set') then '' else p.payload end
            from journal_payloads p where p.run_id = e.run_id and p.seq = e.seq)
       else e.payload end,
       e.execution_seq, e.at
from journal_events e
where e.run_id = :run_id and e.seq > :after
order by e.seq limit :limit

-- name: journals
select e.run_id, {event_columns} from journal_events e
where e.run_id /*postgres: = any(cast(:ids as text[])) */ /*sqlite: in (select value from json_each(:ids)) */
order by e.run_id, e.seq

-- Never an expired one: what the list shows is held, and what expired is not.
-- name: leases
select {lease_columns} from concurrency_leases where expires_at > :now order by run_id

-- name: queue
select {queue_columns} from dispatch_queue order by priority desc, enqueued_at, run_id limit :limit

-- What a session was promised and has not taken. Along the index of what is due, through what is promised to anybody:
-- never through a backlog.
-- name: reservations
select run_id, reservation_token from dispatch_queue where status = 'reserved' and reserved_by = :session_id

-- name: waits
select {wait_columns} from waits where run_id = :run_id order by step_id

-- Use is counted from the rows that hold something; a lane that nobody executes in and nobody is held back by is idle.
-- name: lanes
with used as (
    select l.lane, count(*) as n from concurrency_leases c cross join run_lanes l
    where l.run_id = c.run_id group by l.lane
), promised as (
    select l.lane, count(*) as n from dispatch_queue q cross join run_lanes l
    where q.status = 'reserved' and l.run_id = q.run_id group by l.lane
), held as (
    select blocked_lane as lane, count(*) as n from dispatch_queue where blocked_lane is not null group by blocked_lane
), named as (
    select lane from used union select lane from promised union select lane from held
)
select n.lane,
       (select max(l.lane_limit) from run_lanes l where l.lane = n.lane) as lane_limit,
       coalesce((select u.n from used u where u.lane = n.lane), 0) as executing,
       coalesce((select p.n from promised p where p.lane = n.lane), 0) as reserved,
       coalesce((select h.n from held h where h.lane = n.lane), 0) as blocked
from named n order by n.lane

-- name: counts
select state, count(*) from runs where org = :org and environment = :environment group by state

-- name: counts_of_all
select state, count(*) from runs group by state

-- Newest first, keyset by id: ids grow with time.
-- name: audits
select {audit_columns} from audit_log where audit_id < :before order by audit_id desc limit :limit

-- name: audits_of_scope
select {audit_columns} from audit_log
where org = :org and environment = :environment and audit_id < :before
order by audit_id desc limit :limit

-- name: audits_of_run
select {audit_columns} from audit_log
where run_id = :run_id and audit_id < :before
  and (cast(:org as text) is null or (org = cast(:org as text) and environment = cast(:environment as text)))
order by audit_id desc limit :limit

-- name: workflows
select w.name, w.version, w.worker_tags, w.definition, w.first_seen_at, w.seen_at, p.paused_at
from workflows_seen w
left join workflow_pauses p on p.org = w.org and p.environment = w.environment and p.workflow = w.name
where w.org = :org and w.environment = :environment

-- What the live workers of a scope serve; many of them serve the same.
-- name: serving
select distinct serves from worker_sessions
where org = :org and environment = :environment and expires_at > :now and draining = 0 and serves is not null

-- name: paused_workflows
select workflow, paused_at from workflow_pauses where org = :org and environment = :environment order by workflow

-- The rows of one run, by which `why` explains it.
-- name: queue_row
select {queue_columns} from dispatch_queue where run_id = :run_id

-- name: lease_row
select {lease_columns} from concurrency_leases where run_id = :run_id

-- From those who hold something to their lanes: a lane may have a backlog of any length, and nobody in it holds one.
-- name: lane_holders
select m.lane, m.lane_limit, c.run_id, 1 as executing
from concurrency_leases c cross join run_lanes o cross join run_lanes m
where o.run_id = c.run_id and m.run_id = :run_id and m.lane = o.lane
union all
select m.lane, m.lane_limit, q.run_id, 0
from dispatch_queue q cross join run_lanes o cross join run_lanes m
where q.status = 'reserved' and o.run_id = q.run_id and m.run_id = :run_id and m.lane = o.lane
order by 1, 4 desc, 3
