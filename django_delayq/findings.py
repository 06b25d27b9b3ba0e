"""The table of all findings of system checks, workers and `delayq doctor`. The reference page of checks is generated from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from django.core.checks import CheckMessage, Error, Warning

Level = Literal["error", "warning"]
LEVELS: Final = {"error": Error, "warning": Warning}
CHECK, DEPLOY, RIGHTS = "check", "check --deploy", "check --deploy --database default"
DOCTOR, DEEP = "delayq doctor", "delayq doctor --deep"
FIX: Final = "To repair this, run manage.py delayq doctor --deep --fix."


class FindingKind(NamedTuple):
    """One row. `command`: the first command that reports it; `delayq doctor` reports all. `remedy`: the usual hint."""

    level: Level
    command: str
    meaning: str
    remedy: str


def _kinds(command: str, level: Level, **rows: tuple[str, str]) -> dict[str, FindingKind]:
    """Rows of one command, as code -> meaning and remedy."""
    return {code: FindingKind(level, command, *texts) for code, texts in rows.items()}


KINDS: Final[Mapping[str, FindingKind]] = {
    **_kinds(
        CHECK,
        "error",
        E001=("DELAYQ contains an unknown key.", "Correct or remove the key. The message suggests a known key with a similar name."),
        E002=("A setting has an invalid type or value.", "To see which values a setting accepts, run manage.py delayq settings."),
        E003=("REDIS is invalid: the alias, the URL, the factory or an option.", "Use a URL such as 'redis://localhost:6379/1'."),
        E004=("A task uses a queue that is not listed in QUEUES.", "Add the queue to DELAYQ['QUEUES']."),
        E005=("Two functions are registered as the same task.", "Set a different name= for one. Otherwise, only the first one runs."),
        E006=("DATABASE is not an alias in DATABASES.", "Set DATABASE to an alias in DATABASES."),
        E007=("SIGNING is enabled, but Django has no SECRET_KEY.", "Set SECRET_KEY, or disable SIGNING."),
        E008=(
            "An entry in CARRIERS cannot be imported, is not a carrier, or has the same name as another carrier.",
            "Correct the entry. A carrier is a class with the methods pack and wrap.",
        ),
        E030=("OPTIONS of a backend in TASKS contains an unknown key.", "Correct or remove the key."),
        E031=("OPTIONS of a backend in TASKS has an invalid value.", "Correct or remove it. Without it, the queue's setting applies."),
        E032=("QUEUES of a backend in TASKS contains a queue that DELAYQ does not list.", "Add it to DELAYQ['QUEUES'], or remove it."),
        E033=("The cron expression of a schedule never matches a date.", "Correct the expression. For the last day of a month, use L."),
        E034=(
            "A schedule has a cron expression, but the package cronsim is not installed.",
            'Run pip install "django-delayq[cron]", or use every= instead.',
        ),
        E035=("The jobs of a schedule cannot be created.", "Correct args and kwargs of the schedule, or the task."),
        E036=("USE_TZ is off, so dates are local times, and schedules do not run.", "Set USE_TZ to True, which is Django's default."),
        E037=("HTTP is set, but the package urllib3 is not installed.", 'Run pip install "django-delayq[http]".'),
        E038=("A task uses a queue of messages (CONSUMER is 'pull').", "Choose a queue of workers. To add a message, call push()."),
        E039=("Two tasks of a queue declare different rates for the same name.", "Use the same rate, or another name."),
        E050=("The KEY of a target starts with PREFIX, or two targets have the same KEY.", "Use a different key for each target."),
        E060=(
            "OBJECT_URL cannot be imported, or is not a function.",
            "Correct the path to a function that takes a job and returns a URL or None.",
        ),
        E065=("TASK_MODULES contains a module that does not exist.", "Correct the name of the module, or remove it."),
    ),
    **_kinds(
        CHECK,
        "warning",
        W002=("Jobs and a cache share a Redis database: cache.clear() deletes jobs.", "Use another database number or another server."),
        W003=(
            "ATOMIC_REQUESTS is set for a database other than DATABASE, so schedule() raises an error in requests.",
            "Set DATABASE to that alias, or pass using= or durability='redis' to schedule().",
        ),
        W004=(
            "REDIS contains options of redis-py that have no effect, such as max_connections or socket_timeout.",
            "Remove these options. Each process opens the connections that it needs, and delayq sets the timeouts.",
        ),
        W045=(
            "django-tenants is installed, and all tenants share keys, concurrency names and locks.",
            "Include the tenant in each of them, such as key=f'{schema}:order:{pk}'. Then add 'delayq.W045' to SILENCED_SYSTEM_CHECKS.",
        ),
        W070=(
            "The connection pool of a database has fewer connections than a worker process has threads.",
            "Increase the size of the pool, or start workers with fewer --threads.",
        ),
    ),
    **_kinds(
        DEPLOY,
        "error",
        E009=("INLINE is on and DEBUG is off: jobs run in requests, at once, without retries.", "Remove INLINE, and start workers."),
        E010=(
            "Redis can evict jobs when its memory is full.",
            "Set maxmemory-policy to noeviction, or use a separate server for the jobs. An evicted job is lost without an error.",
        ),
        E011=("The server is older than Redis 6.2 or Valkey 7.2.", "Upgrade the server."),
        E012=("The server is a replica, which does not accept writes.", "Set DELAYQ['REDIS'] to the primary."),
        E013=("REDIS is the URL of one server, but it is a node of a Cluster.", "Use a redis+cluster:// URL with several nodes."),
        E014=("The server is a Sentinel.", "Use a URL that starts with redis+sentinel:// and contains the name of the master."),
        E015=("The server does not have the database number in REDIS.", "Use a number that the server has at the end of the URL."),
        E016=(
            "The Sentinels do not know a master with the name in REDIS.",
            "Use the name in their `sentinel monitor` line. To list the masters, run redis-cli -p 26379 SENTINEL MASTERS.",
        ),
        E017=("REDIS is a Cluster's URL, but the server is not part of one.", "Use the URL of one server, which starts with redis://."),
        E018=("Some slots of the Cluster have no node. Queues in these slots do not work.", "Run redis-cli --cluster fix."),
        E019=(
            "Some nodes of the Cluster cannot be reached from this host.",
            "Start the nodes, or correct cluster-announce-ip, cluster-announce-hostname and cluster-preferred-endpoint-type.",
        ),
        E020=(
            "The server or the Sentinels require TLS, but the URL in REDIS does not use it.",
            "Use a URL that starts with rediss://, rediss+sentinel:// or rediss+cluster://.",
        ),
        E022=(
            "A server has fewer replicas than REPLICAS requires, or rejects WAIT.",
            "Start more replicas, allow WAIT, or reduce REPLICAS.",
        ),
        E025=(
            "The queues in Redis belong, or may belong, to another site. The database is a copy, or the site has moved.",
            "For a copy, set a different PREFIX. If the site has moved, run manage.py delayq adopt.",
        ),
    ),
    **_kinds(
        DEPLOY,
        "warning",
        W010=(
            "Redis does not write to disk, so a restart deletes its contents.",
            "Set appendonly to yes. Durable jobs are restored from the database, but jobs with redis durability are lost.",
        ),
        W011=("Redis only writes snapshots, so a crash loses later changes.", "Set appendonly to yes and appendfsync to everysec."),
        W012=(
            "The clocks of this host and of the Redis host differ by more than a second.",
            "Run an NTP client on both hosts. Your code calculates dates with one clock, and Redis compares them with another.",
        ),
        W013=("Redis cannot be reached, or rejects the credentials.", "Check DELAYQ['REDIS'], and check that the server is running."),
        W014=(
            "Redis is on another host, but the connection does not use TLS.",
            "Use rediss:// or rediss+sentinel:// in DELAYQ['REDIS']. If the network is private, you can silence this check.",
        ),
        W015=(
            "Redis is on another host and does not require a password.",
            "Add a Redis user to DELAYQ['REDIS']. To list the rights that it needs, run manage.py delayq settings REDIS.",
        ),
        W016=(
            "The connection uses TLS, but does not verify the certificate or the host name of the server.",
            "Remove ssl_cert_reqs and ssl_check_hostname from REDIS or the cache, and set ssl_ca_certs to your authority.",
        ),
        W017=("Redis is on another host, but SIGNING is off.", "Set SIGNING to True. See manage.py delayq settings SIGNING."),
        W018=("Other users can read or replace files of the embedded server.", "Use a directory of the site's user, with mode 0700."),
        W019=(
            "Workers answer health probes on all addresses of their host.",
            "Set --health-host to the address that the probes use. If a firewall protects the port, you can silence this check.",
        ),
        W020=(
            "Django, redis or django-redis is newer than the versions that this release was tested with.",
            "Upgrade django-delayq. If there is no newer release, run your tests and silence this check.",
        ),
        W021=("ALLOW in HTTP includes this host, its network link, or every address.", "Allow only the networks of your partners."),
        W022=("A queue is in use, but no worker has the role mirror for it.", "Start a worker with the roles mirror and relay for it."),
        W024=(
            "Slots of the Cluster are being moved, or a move has stopped halfway. Queues in these slots wait.",
            "Wait until the move has finished. If no move is running, run redis-cli --cluster fix.",
        ),
        W025=("A master has no replica. If it fails, its queues stop.", "Run redis-cli --cluster add-node NEW OLD --cluster-slave."),
        W026=(
            "cluster-require-full-coverage is enabled, so if one master fails, the queues of all masters stop.",
            "On every node, run CONFIG SET cluster-require-full-coverage no and CONFIG REWRITE.",
        ),
        W027=("One master has more than twice its share of the partitions of a queue.", "Move some of the slots to other masters."),
        W028=(
            "A partition has more jobs than the Cluster can move without delays.",
            "Increase PARTITIONS, or set a HORIZON, which keeps later jobs in the database.",
        ),
        W040=(
            "The gateway is installed, but the settings do not enforce TLS.",
            "Set SECURE_SSL_REDIRECT to True. If a proxy terminates TLS and rejects plain requests, set SECURE_PROXY_SSL_HEADER.",
        ),
        W041=(
            "The gateway counts requests in a cache that processes do not share.",
            "For CACHES['default'], use a backend that all processes share, such as Redis with a different database number.",
        ),
        W071=(
            "The pools of all worker processes together can open more connections than the database server allows (PostgreSQL only).",
            "Reduce the size of the pool, run fewer processes, or increase max_connections.",
        ),
    ),
    **_kinds(
        RIGHTS,
        "error",
        E021=(
            "The Redis user has no permission for a command that workers need, or for keys that start with PREFIX.",
            "Grant the Redis user the rights that manage.py delayq settings REDIS prints.",
        ),
        D001=("Migrations of delayq have not been applied.", "Run manage.py migrate."),
    ),
    **_kinds(
        DOCTOR,
        "error",
        D003=("The database cannot be reached.", "Check DATABASES, and check that the database server is running."),
        D007=("Redis, or a master of a Cluster, cannot be reached.", "Check DELAYQ['REDIS'], and check that the server is running."),
        D012=(
            "The events of a queue that are not in the database have reached half of MIRROR_MAX_EVENTS.",
            "Run a worker with the role mirror. If one is running, check its log and the database.",
        ),
        D021=(
            "A queue in Redis has a newer format than this process supports.",
            "Upgrade django-delayq in this process to the release that wrote it.",
        ),
        D022=("A queue has a HORIZON, but no worker has the role relay for it.", "Start a worker with the role relay for this queue."),
        D023=("Jobs beyond a queue's HORIZON reach Redis too late.", "Check the log of workers with the role relay, and the database."),
        D026=("Jobs are in partitions that the settings do not list.", "Add the number in the message to FORMER_PARTITIONS."),
        D029=(
            "The clocks of the database and of Redis differ by five minutes or more. Until this is fixed, no old rows are deleted.",
            "Run an NTP client on the hosts of the database and of Redis.",
        ),
        D030=("A schedule cannot create jobs.", "For details, run manage.py delayq periodic NAME."),
        D033=(
            "Jobs are unresolved: no event shows how they ended, or whether they ran before Redis lost them.",
            (
                "To list them, run manage.py delayq list --state unresolved. Find out what each job did. Then run manage.py "
                "delayq mark-succeeded ID, mark-failed ID or requeue ID."
            ),
        ),
        D050=("The Redis user has no permission to write to the keys of targets.", "Add the keys to the rights of the Redis user."),
        D051=("The key of a target holds a value of a type other than its KIND.", "Use a different KEY, or delete the value."),
        D038=(
            "There are committed changes for jobs of a queue that QUEUES does not list, so no process carries them out.",
            (
                "Add the queue to QUEUES again, and run a worker with the role relay. If you no longer need its jobs, delete the "
                "rows of these changes from the table delayq_commit_request."
            ),
        ),
    ),
    **_kinds(
        DOCTOR,
        "warning",
        D002=(
            "Committed jobs have waited for more than a minute to be published to Redis.",
            "Run a worker with the roles mirror and relay. If one is running, check its log.",
        ),
        D004=("No worker serves a queue, or no worker has the role mirror for it.", "Start a worker for this queue."),
        D005=("A queue, a task or a concurrency name is paused.", "To resume it, run manage.py delayq resume."),
        D006=(
            "Events of a queue reach the database more than a minute late.",
            "Run a worker with the role mirror. If one is running, check its log and the database.",
        ),
        D011=("The database rejected events of a queue.", "Run manage.py delayq set-aside. After you fix the cause, add --retry."),
        D014=(
            "The Redis user can run commands that delayq never uses, such as FLUSHALL.",
            "Use a different user in DELAYQ['REDIS']. To list the rights that it needs, run manage.py delayq settings REDIS.",
        ),
        D025=(
            "A queue has its own REDIS, but some of its jobs are still on the shared server, where no worker runs them.",
            "Remove REDIS from the queue until its jobs with redis durability have run. Durable jobs run on the new server.",
        ),
        D027=("FORMER_PARTITIONS of a queue is no longer needed.", "Remove it. Until then, each job with a key uses two partitions."),
        D028=("FORMER_PARTITIONS of a queue is still needed.", "Keep the setting until these jobs have run."),
        D031=(
            "The ticks of a schedule are more than a minute late.",
            "Run a worker with the role relay that has the schedule. If no code declares it, it is retired within an hour.",
        ),
        D032=(
            "A schedule was retired in the last week, because no code declares it.",
            "If you removed the schedule on purpose, ignore this warning. It disappears after a week.",
        ),
        D035=(
            "Jobs are parked: workers do not have their task, its parameters, a carrier or the signing key.",
            "Deploy workers of the release that scheduled these jobs, or add the module of the task to TASK_MODULES.",
        ),
        D039=(
            "A batch waits for jobs whose ends are not known: their events were rejected, or they are unresolved.",
            "Retry the rejected events, and resolve the unresolved jobs. The batch then continues.",
        ),
        D040=(
            "A batch that is older than an hour has ended, but not all of its jobs succeeded, so its next job is not scheduled.",
            "Requeue these jobs. Or cancel the batch, which frees its key.",
        ),
        D036=("Redis rejects an optional command. The message describes the effect.", "Allow the command if possible."),
    ),
    **_kinds(
        DEEP,
        "error",
        D008=("Unfinished jobs in the database are not in Redis.", FIX),
        D009=("Redis still has jobs that have already ended according to the database, so they would run again.", FIX),
        D034=("Unfinished jobs in the database have ended in Redis, but no event shows how.", FIX),
        D037=("Jobs have a record in Redis but no date, so no worker runs them. Redis rejected a command of a script.", FIX),
    ),
    **_kinds(
        DEEP,
        "warning",
        D010=("Jobs in Redis have no row in the database.", FIX),
        D013=("Redis has lost unfinished jobs of redis durability. It is unknown whether they ran.", FIX),
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. The default message, hint and level are those of its kind. A worker does not start if there is an error."""

    code: str
    message: str = ""
    hint: str = ""
    level: Level | Literal[""] = ""

    def __post_init__(self) -> None:
        kind = KINDS[self.code]
        object.__setattr__(self, "message", self.message or kind.meaning)
        object.__setattr__(self, "hint", self.hint or kind.remedy)
        object.__setattr__(self, "level", self.level or kind.level)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}"


def check_message(code: str, message: str = "", hint: str = "") -> CheckMessage:
    """A finding as a message of Django's system checks."""
    found = Finding(code, message, hint)
    return LEVELS[found.level](found.message, hint=found.hint, id=f"delayq.{code}")
