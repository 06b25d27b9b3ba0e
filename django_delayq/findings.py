"""The table of findings: what system checks, workers and `delayq doctor` can report. Code that reports one adds the case to it; the
reference page of the documentation is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from django.core.checks import CheckMessage, Error, Warning

Level = Literal["error", "warning"]
LEVELS: Final = {"error": Error, "warning": Warning}
CHECK, DEPLOY, RIGHTS = "check", "check --deploy", "check --deploy --database default"
DOCTOR, DEEP = "delayq doctor", "delayq doctor --deep"
FIX: Final = "Put it right: manage.py delayq doctor --deep --fix"


class FindingKind(NamedTuple):
    """One row. `command`: the first one that reports it; doctor reports all. `remedy`: the hint, unless the case has a better one."""

    level: Level
    command: str
    meaning: str
    remedy: str


KINDS: Final[Mapping[str, FindingKind]] = {
    # Settings and tasks
    "E001": FindingKind("error", CHECK, "DELAYQ has an unknown key.", "Correct the key. The message names the nearest known one."),
    "E002": FindingKind(
        "error", CHECK, "A setting has a wrong type or value.", "manage.py delayq settings lists what a setting accepts."
    ),
    "E003": FindingKind(
        "error",
        CHECK,
        "REDIS does not lead to a Redis server: the alias, the URL, the factory or one of the options is wrong.",
        "Write a URL such as 'redis://localhost:6379/1'.",
    ),
    "E004": FindingKind("error", CHECK, "A task names a queue that QUEUES does not list.", "Add the queue to DELAYQ['QUEUES']."),
    "E005": FindingKind(
        "error",
        CHECK,
        "Two functions are registered as tasks with the same name.",
        "Give one of them another name=. Jobs name their task, so only the first would ever run.",
    ),
    "E006": FindingKind("error", CHECK, "DATABASE is not an alias in DATABASES.", "Name an alias of DATABASES."),
    "E007": FindingKind("error", CHECK, "SIGNING is on, and Django has no SECRET_KEY.", "Set SECRET_KEY, or turn SIGNING off."),
    "E008": FindingKind(
        "error",
        CHECK,
        "A path in CARRIERS cannot be imported, is not a carrier, or has the name of another carrier.",
        "Correct the path. A carrier is a class with the methods pack and wrap.",
    ),
    "E030": FindingKind("error", CHECK, "OPTIONS of a backend in TASKS has an unknown key.", "Correct the key, or remove it."),
    "E031": FindingKind(
        "error",
        CHECK,
        "A value in OPTIONS of a backend in TASKS is not valid.",
        "Correct it, or leave it out to use the value of the queue.",
    ),
    "E032": FindingKind(
        "error",
        CHECK,
        "QUEUES of a backend in TASKS names a queue that DELAYQ does not list.",
        "Add the queue to DELAYQ['QUEUES'], or remove it from TASKS.",
    ),
    "E033": FindingKind(
        "error",
        CHECK,
        "The cron expression of a schedule never matches.",
        "Correct it; L as the day of month is the last day of any.",
    ),
    "E034": FindingKind(
        "error",
        CHECK,
        "A schedule has a cron expression, and the package cronsim is not installed.",
        'pip install "django-delayq[cron]", or give it a period, every=.',
    ),
    "E035": FindingKind("error", CHECK, "The jobs of a schedule would be refused.", "Correct its args and kwargs, or the task."),
    "E036": FindingKind(
        "error",
        CHECK,
        "USE_TZ is off, so rows of jobs would have local times.",
        "Set USE_TZ = True, Django's default.",
    ),
    "E037": FindingKind("error", CHECK, "HTTP is set, and the package urllib3 is not installed.", 'pip install "django-delayq[http]"'),
    "E038": FindingKind(
        "error",
        CHECK,
        "A task names a queue that holds messages (CONSUMER is 'pull').",
        "Name a queue of workers. Put messages for your own consumers in with delayq.push.",
    ),
    "E050": FindingKind(
        "error",
        CHECK,
        "The KEY of a target begins with PREFIX, or another target has it too.",
        "Give each target its own key.",
    ),
    "E060": FindingKind(
        "error",
        CHECK,
        "OBJECT_URL cannot be imported, or is not a function.",
        "Correct the path. The function takes a job and returns a URL or None.",
    ),
    "E065": FindingKind(
        "error",
        CHECK,
        "A module in TASK_MODULES does not exist.",
        "Correct the name, or take it out: workers import these modules for the tasks in them.",
    ),
    "W002": FindingKind(
        "warning",
        CHECK,
        "Jobs share a Redis database with a cache, and cache.clear() deletes both.",
        "Give the jobs another database number, or a server of their own.",
    ),
    "W003": FindingKind(
        "warning",
        CHECK,
        "ATOMIC_REQUESTS opens transactions on another database than DATABASE, so schedule() raises an error in requests.",
        "Set DATABASE to that alias, or pass using= or durability='redis' to schedule().",
    ),
    "W004": FindingKind(
        "warning",
        CHECK,
        "REDIS has options of redis-py that are ignored, such as max_connections or socket_timeout.",
        "Take them out. Timeouts and decoding are delayq's own, and each process opens as many connections as it needs.",
    ),
    "W045": FindingKind(
        "warning",
        CHECK,
        "django-tenants is installed, and all tenants share keys, concurrency names and locks.",
        "Put the tenant into each of them, such as key=f'{schema}:order:{pk}', and add 'delayq.W045' to SILENCED_SYSTEM_CHECKS.",
    ),
    "W070": FindingKind(
        "warning",
        CHECK,
        "A database pool has fewer connections than a worker process has threads.",
        "Raise the size of the pool, or start workers with fewer --threads.",
    ),
    # The server
    "E009": FindingKind(
        "error",
        DEPLOY,
        "INLINE is on and DEBUG is off, so no worker runs the jobs.",
        "Take it out of the settings of production, and run workers.",
    ),
    "E010": FindingKind(
        "error",
        DEPLOY,
        "Redis may evict keys when its memory is full.",
        "Set maxmemory-policy noeviction, or give the jobs a server of their own: an evicted job is lost without a trace.",
    ),
    "E011": FindingKind("error", DEPLOY, "The server is older than Redis 6.2 or Valkey 7.2.", "Upgrade the server."),
    "E012": FindingKind("error", DEPLOY, "The server is a replica.", "Name the primary in DELAYQ['REDIS']."),
    "E013": FindingKind(
        "error",
        DEPLOY,
        "The server is a node of a Redis Cluster, and REDIS has the URL of a single server.",
        "Write redis+cluster://… with several nodes.",
    ),
    "E014": FindingKind("error", DEPLOY, "The server is a Sentinel.", "Write redis+sentinel://… with the name of the master."),
    "E015": FindingKind(
        "error", DEPLOY, "The server has no database with the number in REDIS.", "End the URL with a number that the server has."
    ),
    "E016": FindingKind(
        "error",
        DEPLOY,
        "The Sentinels do not know a master with the name in REDIS.",
        "Write the name of their `sentinel monitor`. Those that one knows: redis-cli -p 26379 SENTINEL MASTERS",
    ),
    "E017": FindingKind(
        "error",
        DEPLOY,
        "REDIS has the URL of a Cluster, and the server is not a node of one.",
        "Write the URL of a single server, redis://…",
    ),
    "E018": FindingKind(
        "error", DEPLOY, "No node of the Cluster serves some slots. Queues in these slots do not work.", "redis-cli --cluster fix"
    ),
    "E019": FindingKind(
        "error",
        DEPLOY,
        "Some nodes of the Cluster cannot be reached from this host.",
        "Look whether they run. If they do, let them announce what leads to them from here: cluster-announce-ip, "
        "cluster-announce-hostname, cluster-preferred-endpoint-type.",
    ),
    "E020": FindingKind(
        "error",
        DEPLOY,
        "The server or the Sentinels expect TLS, and the URL in REDIS is without TLS.",
        "Write rediss://, rediss+sentinel:// or rediss+cluster://.",
    ),
    "E021": FindingKind(
        "error",
        RIGHTS,
        "Redis refuses a command that workers need, or a key that begins with PREFIX.",
        "Give the Redis user the rights that manage.py delayq settings REDIS prints.",
    ),
    "E022": FindingKind(
        "error",
        DEPLOY,
        "Fewer replicas follow a server than REPLICAS asks for, or the Redis user may not call WAIT.",
        "Start the replicas, or set REPLICAS lower.",
    ),
    "E025": FindingKind(
        "error",
        DEPLOY,
        "The queues in Redis belong, or may belong, to another site: the database is a copy, or the site has moved.",
        "A copy needs another PREFIX. A site that has moved needs manage.py delayq adopt.",
    ),
    "W010": FindingKind(
        "warning",
        DEPLOY,
        "Redis does not write to disk: a restart loses its contents.",
        "Set appendonly yes. Durable jobs come back from the database, those of redis durability do not.",
    ),
    "W011": FindingKind(
        "warning",
        DEPLOY,
        "Redis writes snapshots only: a crash takes it back to the last snapshot.",
        "Set appendonly yes and appendfsync everysec.",
    ),
    "W012": FindingKind(
        "warning",
        DEPLOY,
        "The clocks of this host and of Redis differ by more than a second.",
        "Run an NTP client on both: jobs become due by Redis' clock, and dates (run_at) are made by this host's.",
    ),
    "W013": FindingKind(
        "warning",
        DEPLOY,
        "Redis cannot be reached, or refuses the credentials.",
        "Check DELAYQ['REDIS'], and that the server runs.",
    ),
    "W014": FindingKind(
        "warning",
        DEPLOY,
        "Redis is on another host, and the connection does not use TLS.",
        "Write rediss://, or rediss+sentinel://, in DELAYQ['REDIS']. On a private network of your own, silence this check.",
    ),
    "W015": FindingKind(
        "warning",
        DEPLOY,
        "Redis is reached over the network without a password.",
        "Make a user for delayq, and name it in DELAYQ['REDIS']. The rights that one needs: manage.py delayq settings REDIS",
    ),
    "W016": FindingKind(
        "warning",
        DEPLOY,
        "The connection uses TLS, but does not verify the server's certificate or its name.",
        "Take ssl_cert_reqs and ssl_check_hostname out of DELAYQ['REDIS'] or the cache, and name the authority by ssl_ca_certs.",
    ),
    "W017": FindingKind(
        "warning",
        DEPLOY,
        "Redis is reached over the network, and SIGNING is off.",
        "Set DELAYQ['SIGNING'] to True. What it does: manage.py delayq settings SIGNING",
    ),
    "W018": FindingKind(
        "warning",
        DEPLOY,
        "Other users of the host can read or replace the files of the embedded server.",
        "Give it a directory of its own that belongs to the user who runs the site, with mode 0700.",
    ),
    "W019": FindingKind(
        "warning",
        DEPLOY,
        "Workers answer health probes on all addresses of their host.",
        "Add --health-host with the address by which probes come in; or let a firewall see to it, and silence this.",
    ),
    "W020": FindingKind(
        "warning",
        DEPLOY,
        "Django, redis or django-redis is newer than the versions that this release was tested with.",
        "Look for a newer django-delayq; else run your tests with it, and silence this check.",
    ),
    "W021": FindingKind(
        "warning",
        DEPLOY,
        "ALLOW in HTTP lets deliveries reach this host, its local network link, or every address.",
        "List the networks of the partners that are meant, and no more.",
    ),
    "W022": FindingKind(
        "warning",
        DEPLOY,
        "No running worker has the role mirror for a queue that is in use.",
        "Start a worker with the roles mirror and relay for this queue.",
    ),
    "W024": FindingKind(
        "warning",
        DEPLOY,
        "Slots of the Cluster are moving, or a move has stopped halfway. Queues in these slots wait.",
        "Wait until the move has ended. If nothing moves them: redis-cli --cluster fix",
    ),
    "W025": FindingKind(
        "warning",
        DEPLOY,
        "A master of the Cluster has no replica. If it fails, its queues stop.",
        "redis-cli --cluster add-node NEW OLD --cluster-slave",
    ),
    "W026": FindingKind(
        "warning",
        DEPLOY,
        "cluster-require-full-coverage is on: if one master fails, the queues of all others stop too.",
        "Set it to no on every node: CONFIG SET cluster-require-full-coverage no, then CONFIG REWRITE.",
    ),
    "W027": FindingKind(
        "warning",
        DEPLOY,
        "One master has more than twice its share of the partitions of a queue.",
        "Move some of their slots to other masters.",
    ),
    "W028": FindingKind(
        "warning",
        DEPLOY,
        "A partition has more jobs than the Cluster can move without harm.",
        "Give the queue more partitions, see FORMER_PARTITIONS, or a HORIZON, which leaves far jobs in the database.",
    ),
    "W040": FindingKind(
        "warning",
        DEPLOY,
        "The gateway is installed, and the settings do not enforce TLS.",
        "Set SECURE_SSL_REDIRECT, or SECURE_PROXY_SSL_HEADER where a proxy ends TLS and turns plain requests away.",
    ),
    "W041": FindingKind(
        "warning",
        DEPLOY,
        "The gateway counts requests in a cache that processes do not share.",
        "Give CACHES['default'] a backend that all processes share, such as Redis; not the database of the jobs.",
    ),
    "W071": FindingKind(
        "warning",
        DEPLOY,
        "The pools of all worker processes can open more connections than the database server allows (PostgreSQL only).",
        "Lower the size of the pool, run fewer processes, or raise max_connections.",
    ),
    # The doctor
    "D001": FindingKind("error", DOCTOR, "Migrations of delayq are not applied.", "Run manage.py migrate."),
    "D002": FindingKind(
        "warning",
        DOCTOR,
        "Committed jobs have waited for more than a minute to be published to Redis.",
        "Run a worker with the roles mirror and relay, and look at its log.",
    ),
    "D003": FindingKind("error", DOCTOR, "The database cannot be reached.", "Check DATABASES, and that it runs."),
    "D004": FindingKind(
        "warning", DOCTOR, "No worker serves a queue, or no worker has the role mirror for it.", "Start a worker for this queue."
    ),
    "D005": FindingKind("warning", DOCTOR, "A queue is paused.", "Resume it: manage.py delayq resume QUEUE"),
    "D006": FindingKind(
        "warning",
        DOCTOR,
        "The rows of a queue are more than a minute behind its events.",
        "Run a worker with the role mirror; if one runs, look at its log and at the database.",
    ),
    "D007": FindingKind(
        "error", DOCTOR, "Redis, or a master of a Cluster, cannot be reached.", "Check DELAYQ['REDIS'], and that the server runs."
    ),
    "D011": FindingKind(
        "warning",
        DOCTOR,
        "The database rejected events of a queue.",
        "Look at them: manage.py delayq set-aside. When the reason is gone, add --retry.",
    ),
    "D012": FindingKind(
        "error",
        DOCTOR,
        "The rows of a queue are behind by half of MIRROR_MAX_EVENTS or more.",
        "Run a worker with the role mirror; if one runs, look at its log and at the database.",
    ),
    "D014": FindingKind(
        "warning",
        DOCTOR,
        "The Redis user may call commands that delayq never sends, such as FLUSHALL.",
        "Name another user in DELAYQ['REDIS']. The rights that one needs: manage.py delayq settings REDIS",
    ),
    "D021": FindingKind(
        "error",
        DOCTOR,
        "A queue in Redis has a newer format than this process knows.",
        "Deploy the newer release here, too.",
    ),
    "D022": FindingKind(
        "error",
        DOCTOR,
        "A queue has a HORIZON, and no worker has the role relay for it.",
        "Start a worker with the role relay for this queue.",
    ),
    "D023": FindingKind(
        "error",
        DOCTOR,
        "Jobs beyond the HORIZON of a queue reach Redis too late.",
        "Look at the logs of the workers that have the role relay, and at how long statements of the database take.",
    ),
    "D025": FindingKind(
        "warning",
        DOCTOR,
        "A queue has its own REDIS, and jobs of it are still on the shared server, where no worker runs them.",
        "Take REDIS out of the queue until jobs of redis durability have run. Durable jobs run from their rows.",
    ),
    "D026": FindingKind(
        "error",
        DOCTOR,
        "Jobs are in partitions that PARTITIONS and FORMER_PARTITIONS do not cover.",
        "Add the number in the message to FORMER_PARTITIONS, and deploy.",
    ),
    "D027": FindingKind(
        "warning",
        DOCTOR,
        "FORMER_PARTITIONS of a queue is no longer needed.",
        "Take it out of the settings, and deploy; until then each job with a key asks two partitions.",
    ),
    "D028": FindingKind("warning", DOCTOR, "FORMER_PARTITIONS of a queue is still needed.", "Leave it until they have run."),
    "D029": FindingKind(
        "error",
        DOCTOR,
        "The clocks of the database and of Redis differ by five minutes or more. No old row is deleted meanwhile.",
        "Run an NTP client on the hosts of the database and of Redis.",
    ),
    "D030": FindingKind("error", DOCTOR, "A schedule cannot make jobs.", "Look at it: manage.py delayq periodic NAME"),
    "D031": FindingKind(
        "warning",
        DOCTOR,
        "The ticks of a schedule are more than a minute late.",
        "Run a worker with the role relay whose code declares it, or has its task. If no code declares it any more, it "
        "is retired within the hour.",
    ),
    "D032": FindingKind(
        "warning",
        DOCTOR,
        "A schedule was retired within a week, because no code declares it.",
        "If that was meant, there is nothing to do, and this is said for a week. Else declare it again.",
    ),
    "D033": FindingKind(
        "error",
        DOCTOR,
        "Jobs are unresolved: they have ended, and no event says how.",
        "List them: manage.py delayq list --state unresolved. Find out what each has done. Then end it with "
        "manage.py delayq mark-succeeded ID or mark-failed ID, or run it again with manage.py delayq requeue ID.",
    ),
    "D035": FindingKind(
        "warning",
        DOCTOR,
        "Jobs are parked: workers do not know their task, or know it with other parameters.",
        "Deploy workers that have the task, or add its module to TASK_MODULES.",
    ),
    "D036": FindingKind(
        "warning",
        DOCTOR,
        "Redis refuses an optional command. The message says what happens instead.",
        "Allow the command if you can.",
    ),
    "D050": FindingKind(
        "error", DOCTOR, "The Redis user may not write to the keys of targets.", "Add the keys to the rights of the Redis user."
    ),
    "D051": FindingKind(
        "error",
        DOCTOR,
        "The key of a target holds a value of another type than its KIND.",
        "Rename one of the two, or delete what stands there.",
    ),
    "D008": FindingKind("error", DEEP, "Unfinished jobs have rows and are not in Redis.", FIX),
    "D009": FindingKind(
        "error",
        DEEP,
        "Jobs are in Redis, and their rows are finished. They would run again.",
        FIX,
    ),
    "D010": FindingKind("warning", DEEP, "Jobs are in Redis and have no rows.", FIX),
    "D013": FindingKind(
        "warning",
        DEEP,
        "Redis has lost unfinished jobs of redis durability. They may have run or not.",
        FIX,
    ),
    "D034": FindingKind(
        "error",
        DEEP,
        "Unfinished rows have jobs that ended in Redis, and no event says how.",
        FIX,
    ),
    "D037": FindingKind(
        "error",
        DEEP,
        "Jobs have a record in Redis and no date, so no worker runs them. Redis refused a script one of its commands.",
        FIX,
    ),
    "D038": FindingKind(
        "error",
        DOCTOR,
        "Committed changes of jobs are for a queue that QUEUES does not list, so no process carries them out.",
        "List the queue again, and run a worker with the role relay. If its jobs are gone for good, delete the rows of these changes "
        "from the table delayq_commit_request.",
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `hint` and `level`: of this case; empty: those of its kind. The worker refuses to start on an error."""

    code: str
    message: str
    hint: str = ""
    level: Level | Literal[""] = ""

    def __post_init__(self) -> None:
        kind = KINDS[self.code]
        object.__setattr__(self, "hint", self.hint or kind.remedy)
        object.__setattr__(self, "level", self.level or kind.level)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}"


def check_message(code: str, message: str, hint: str = "") -> CheckMessage:
    """A finding, as Django's system checks return it."""
    found = Finding(code, message, hint)
    return LEVELS[found.level](message, hint=found.hint, id=f"delayq.{code}")
