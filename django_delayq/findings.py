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
        "Give one of them another name=. Only the first of them would ever run.",
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
        "Correct it. For the last day of every month, write L as the day of the month.",
    ),
    "E034": FindingKind(
        "error",
        CHECK,
        "A schedule has a cron expression, and the package cronsim is not installed.",
        'pip install "django-delayq[cron]", or use every=.',
    ),
    "E035": FindingKind(
        "error", CHECK, "The jobs of a schedule would be refused.", "Correct args and kwargs of the schedule, or the task."
    ),
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
        "Name a queue of workers. To add a message for your consumers, call delayq.push.",
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
        "Correct the name, or remove it.",
    ),
    "W002": FindingKind(
        "warning",
        CHECK,
        "Jobs share a Redis database with a cache, and cache.clear() deletes both.",
        "Use another database number or another server for the jobs.",
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
        "Remove them. Each process opens as many connections as it needs, with timeouts of the package.",
    ),
    "W045": FindingKind(
        "warning",
        CHECK,
        "django-tenants is installed, and all tenants share keys, concurrency names and locks.",
        "Add the tenant to each of them, such as key=f'{schema}:order:{pk}', and add 'delayq.W045' to SILENCED_SYSTEM_CHECKS.",
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
        "Remove INLINE from the settings of production, and run workers.",
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
        "Write the name of their `sentinel monitor`. To list the masters that a Sentinel knows: redis-cli -p 26379 SENTINEL MASTERS",
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
        "Check that they run. If they do, set the addresses that they announce: cluster-announce-ip, cluster-announce-hostname, "
        "cluster-preferred-endpoint-type.",
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
        "Set appendonly yes. Durable jobs come back from the database. Jobs with redis durability are lost.",
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
        "Run an NTP client on both. Jobs become due by the clock of Redis, and your code makes dates by the clock of this host.",
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
        "Write rediss://, or rediss+sentinel://, in DELAYQ['REDIS']. On a private network, you can silence this check.",
    ),
    "W015": FindingKind(
        "warning",
        DEPLOY,
        "Redis is reached over the network without a password.",
        "Make a Redis user for delayq, and name it in DELAYQ['REDIS']. Its rights are listed by manage.py delayq settings REDIS",
    ),
    "W016": FindingKind(
        "warning",
        DEPLOY,
        "The connection uses TLS, but does not verify the server's certificate or its name.",
        "Remove ssl_cert_reqs and ssl_check_hostname from DELAYQ['REDIS'] or the cache, and name the authority in ssl_ca_certs.",
    ),
    "W017": FindingKind(
        "warning",
        DEPLOY,
        "Redis is reached over the network, and SIGNING is off.",
        "Set DELAYQ['SIGNING'] to True. For details: manage.py delayq settings SIGNING",
    ),
    "W018": FindingKind(
        "warning",
        DEPLOY,
        "Other users of the host can read or replace the files of the embedded server.",
        "Use a directory that belongs to the user of the site, with mode 0700.",
    ),
    "W019": FindingKind(
        "warning",
        DEPLOY,
        "Workers answer health probes on all addresses of their host.",
        "Add --health-host with the address for the probes. If a firewall protects the port, silence this check.",
    ),
    "W020": FindingKind(
        "warning",
        DEPLOY,
        "Django, redis or django-redis is newer than the versions that this release was tested with.",
        "Upgrade django-delayq. If there is no newer release, run your tests and silence this check.",
    ),
    "W021": FindingKind(
        "warning",
        DEPLOY,
        "ALLOW in HTTP lets deliveries reach this host, its local network link, or every address.",
        "List only the networks of your partners.",
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
        "Raise PARTITIONS of the queue, or set a HORIZON, which keeps later jobs in the database.",
    ),
    "W040": FindingKind(
        "warning",
        DEPLOY,
        "The gateway is installed, and the settings do not enforce TLS.",
        "Set SECURE_SSL_REDIRECT. If a proxy ends TLS and refuses plain requests, set SECURE_PROXY_SSL_HEADER.",
    ),
    "W041": FindingKind(
        "warning",
        DEPLOY,
        "The gateway counts requests in a cache that processes do not share.",
        "Use a backend for CACHES['default'] that all processes share, such as Redis with another database number.",
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
    "D003": FindingKind("error", DOCTOR, "The database cannot be reached.", "Check DATABASES, and that the database server runs."),
    "D004": FindingKind(
        "warning", DOCTOR, "No worker serves a queue, or no worker has the role mirror for it.", "Start a worker for this queue."
    ),
    "D005": FindingKind("warning", DOCTOR, "A queue is paused.", "Resume it: manage.py delayq resume QUEUE"),
    "D006": FindingKind(
        "warning",
        DOCTOR,
        "The events of a queue reach the database more than a minute late.",
        "Run a worker with the role mirror. If one is running, check its log and the database.",
    ),
    "D007": FindingKind(
        "error", DOCTOR, "Redis, or a master of a Cluster, cannot be reached.", "Check DELAYQ['REDIS'], and that the server runs."
    ),
    "D011": FindingKind(
        "warning",
        DOCTOR,
        "The database rejected events of a queue.",
        "List them: manage.py delayq set-aside. When the cause is fixed, add --retry.",
    ),
    "D012": FindingKind(
        "error",
        DOCTOR,
        "Half of MIRROR_MAX_EVENTS or more events of a queue are not in the database.",
        "Run a worker with the role mirror. If one is running, check its log and the database.",
    ),
    "D014": FindingKind(
        "warning",
        DOCTOR,
        "The Redis user may call commands that delayq never sends, such as FLUSHALL.",
        "Name another user in DELAYQ['REDIS']. Its rights are listed by manage.py delayq settings REDIS",
    ),
    "D021": FindingKind(
        "error",
        DOCTOR,
        "A queue in Redis has a newer format than this process knows.",
        "Deploy the newer release to this process.",
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
        "Check the logs of the workers with the role relay, and the speed of the database.",
    ),
    "D025": FindingKind(
        "warning",
        DOCTOR,
        "A queue has its own REDIS, and jobs of it are still on the shared server, where no worker runs them.",
        "Remove REDIS from the queue until its jobs with redis durability have run. Durable jobs run on the new server.",
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
        "Remove it from the settings, and deploy. Until then, each job with a key needs two partitions.",
    ),
    "D028": FindingKind("warning", DOCTOR, "FORMER_PARTITIONS of a queue is still needed.", "Keep it until these jobs have run."),
    "D029": FindingKind(
        "error",
        DOCTOR,
        "The clocks of the database and of Redis differ by five minutes or more. No old row is deleted meanwhile.",
        "Run an NTP client on the hosts of the database and of Redis.",
    ),
    "D030": FindingKind("error", DOCTOR, "A schedule cannot make jobs.", "For details: manage.py delayq periodic NAME"),
    "D031": FindingKind(
        "warning",
        DOCTOR,
        "The ticks of a schedule are more than a minute late.",
        "Run a worker with the role relay whose code declares the schedule. A schedule that no code declares is retired within an "
        "hour.",
    ),
    "D032": FindingKind(
        "warning",
        DOCTOR,
        "A schedule was retired within a week, because no code declares it.",
        "If you removed it on purpose, do nothing. This message ends after a week.",
    ),
    "D033": FindingKind(
        "error",
        DOCTOR,
        "Jobs are unresolved: no event says how they ended, or whether they ran before Redis lost them.",
        "List them: manage.py delayq list --state unresolved. Find out what each of them did. Then run manage.py delayq "
        "mark-succeeded ID, mark-failed ID or requeue ID.",
    ),
    "D035": FindingKind(
        "warning",
        DOCTOR,
        "Jobs are parked: workers do not know their task, know it with other parameters, or lack a carrier or the signing key.",
        "Deploy workers of the release that scheduled these jobs, or add the module of the task to TASK_MODULES.",
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
        "Use another KEY, or delete the value.",
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
