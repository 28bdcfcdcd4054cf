-- Live worker processes, and the workflows that were seen with them.

-- Opened again, it is brought up to date, but only by the key that registered it (older ones have none noted: then by
-- any of its scope). That somebody wishes it to drain is not for it to take back.
-- name: open_session
insert into worker_sessions ({session_columns})
values (:session_id, :worker_id, :host, :boot_id, :pid, :process_id, :routes, :slots, :credits, :started_at,
        :heartbeat_at, :expires_at, :lock_path, :lock_device, :lock_inode, :wake_address, :suspect_since, :draining,
        :org, :environment, :kind, :serves, :supervisor, :key_id)
on conflict (session_id) do update
set routes = excluded.routes, slots = excluded.slots, credits = excluded.credits, heartbeat_at = excluded.heartbeat_at,
    expires_at = excluded.expires_at, lock_path = excluded.lock_path, lock_device = excluded.lock_device,
    lock_inode = excluded.lock_inode, wake_address = excluded.wake_address, suspect_since = null,
    draining = worker_sessions.draining | excluded.draining, serves = excluded.serves,
    supervisor = excluded.supervisor, key_id = coalesce(worker_sessions.key_id, excluded.key_id)
where worker_sessions.org = excluded.org and worker_sessions.environment = excluded.environment
    and coalesce(worker_sessions.key_id, excluded.key_id, '') = coalesce(excluded.key_id, '')
returning session_id

-- Its worker speaks to another node now. One that is gone stays gone.
-- name: move_session
update worker_sessions
set wake_address = :wake_address, heartbeat_at = :now, expires_at = :expires_at, suspect_since = null
where session_id = :session_id
returning {session_columns}

-- name: sessions
select {session_columns} from worker_sessions order by started_at, session_id

-- Its connection broke. The next heartbeat takes that back.
-- name: suspect_session
update worker_sessions set suspect_since = :now where session_id = :session_id and suspect_since is null
returning session_id

-- Those who have been suspects for long enough; and after them, so that they never fill the page, those who belong to a
-- mass, with the size of it.
-- name: suspects
with clock (at) as (select cast(:now as bigint)), mass as materialized ({mass})
select {session_columns}, m.company, m.live
from worker_sessions left join (select session_id as held, company, live from mass) m on m.held = session_id
where suspect_since <= :until or m.held is not null
order by m.held is not null, m.company desc, suspect_since, session_id limit :limit

-- Time in a mass counts for nothing. What is locked is in other hands: its heartbeat, its end, or another scanner.
-- name: hold_back
with clock (at) as (select cast(:now as bigint)), mass as materialized ({mass}), held as materialized (
    select session_id from worker_sessions
    where suspect_since < :older_than and session_id in (select session_id from mass)
    order by session_id /*postgres: for update skip locked */
)
update worker_sessions set suspect_since = :now where session_id in (select session_id from held)

-- name: drain_session
update worker_sessions set draining = 1 where session_id = :session_id returning session_id

-- name: saw_workflow
insert into workflows_seen (org, environment, name, version, worker_tags, definition, first_seen_at, seen_at)
values (:org, :environment, :name, :version, :worker_tags, :definition, :now, :now)
on conflict (org, environment, name, version) do update
set worker_tags = excluded.worker_tags, definition = excluded.definition, seen_at = excluded.seen_at
returning first_seen_at = seen_at

-- A program may take a new version for each of its releases.
-- name: forget_versions
delete from workflows_seen
where org = :org and environment = :environment and name = :name and version in (
    select version from workflows_seen where org = :org and environment = :environment and name = :name
    order by seen_at desc, first_seen_at desc, version limit 1000 offset :kept
)
