"""Every string that two processes share: group, labels, ports, paths."""

from typing import Final

GROUP: Final = "specdecode.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "SpecDecodeDeployment"
PLURAL: Final = "specdecodedeployments"
SINGULAR: Final = "specdecodedeployment"
SHORT_NAME: Final = "sdd"
CATEGORY: Final = "specdecode"

KIND_TRIAL: Final = "SpecDecodeTrial"
PLURAL_TRIAL: Final = "specdecodetrials"
SINGULAR_TRIAL: Final = "specdecodetrial"
SHORT_NAME_TRIAL: Final = "sdt"

# A resource's name is the prefix of its pods' names: 63 less "-", a hash of ten, "-", five.
MAX_NAME_LENGTH: Final = 40
NAME_PATTERN: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"

# Field managers: one for owned objects, one for the status of the custom resource.
FIELD_MANAGER: Final = "specdecode-operator"
STATUS_FIELD_MANAGER: Final = "specdecode-operator-status"

LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_PART_OF: Final = "app.kubernetes.io/part-of"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_DEPLOYMENT: Final = f"{GROUP}/deployment"
LABEL_OPERATOR_CLASS: Final = f"{GROUP}/operator-class"
"""Of a SpecDecodeDeployment: the class of the operator that reconciles it."""
LABEL_ROLE: Final = f"{GROUP}/role"
LABEL_RUNTIME: Final = f"{GROUP}/runtime"
"""Of pods of another runtime than Specdecode."""
PART_OF: Final = "specdecode"
COMPONENT_ENGINE: Final = "engine"
COMPONENT_ROUTER: Final = "router"
COMPONENT_OPERATOR: Final = "operator"
ROLE_STABLE: Final = "stable"
ROLE_CANARY: Final = "canary"
ROLE_BASELINE: Final = "baseline"  # fresh pods of the old configuration, to compare with a canary

ANNOTATION_CONFIG_HASH: Final = f"{GROUP}/config-hash"
ANNOTATION_DESIRED_HASH: Final = f"{GROUP}/desired-hash"
# On a ControllerRevision: config hashes of its Deployment, oldest first, separated by commas.
ANNOTATION_CONFIG_HASHES: Final = f"{GROUP}/config-hashes"
# On a Deployment: the configuration whose rollout continues in place.
ANNOTATION_IN_PLACE: Final = f"{GROUP}/in-place"
# On a Deployment: hash of all that an exchange of the draft in running engines leaves as it is. The
# config hash on the Deployment itself, if it is there, is that of its pods after such an exchange.
ANNOTATION_EXCHANGE_HASH: Final = f"{GROUP}/exchange-hash"
# On a Deployment: the draft's URI.
ANNOTATION_DRAFT: Final = f"{GROUP}/draft"
# On a Deployment: the ControllerRevision in force, where the spec alone does not decide.
ANNOTATION_REVISION: Final = f"{GROUP}/revision"
# On pods that a trial restarts: the block for which they were made.
ANNOTATION_BLOCK: Final = f"{GROUP}/trial-block"

# On a SpecDecodeDeployment whose state is lost: the config hash of its spec, to be put in force.
ANNOTATION_ACCEPT_SPEC: Final = f"{GROUP}/accept-spec"

# On the Secret of routers: when its tokens last changed.
ANNOTATION_TOKENS_CHANGED: Final = f"{GROUP}/tokens-changed-at"

ENGINE_CONTAINER: Final = "engine"
ROUTER_CONTAINER: Final = "router"
FETCH_CONTAINER: Final = "fetch"
ENGINE_PORT: Final = 8000
ENGINE_PORT_NAME: Final = "http"
MANAGEMENT_PORT: Final = 8001
MANAGEMENT_PORT_NAME: Final = "management"
SERVICE_PORT: Final = 80
BOOT_FILE_NAME: Final = "boot.json"
BOOT_FOLDER: Final = "/etc/specdecode"
PINS_FILE_NAME: Final = "pins.json"
API_KEYS_FOLDER: Final = "/etc/specdecode-keys"
ROUTER_SECRET: Final = "specdecode-router-token"
"""One in each namespace with routers: so a permission can name it."""
ROUTER_TOKEN_FOLDER: Final = "/etc/specdecode-router"
ROUTER_TOKEN_KEY: Final = "token"
"""Key of the token that routers send; every other key of the Secret has one that is valid too."""
MODELS_FOLDER: Final = "/models"
CACHE_FOLDER: Final = "/cache"
TERMINATION_LOG: Final = "/dev/termination-log"

# Path of the file for the termination message, see `report.TerminationMessage`.
VARIABLE_TERMINATION_MESSAGE_PATH: Final = "SPECDECODE_TERMINATION_MESSAGE_PATH"

# API keys of an engine, one per line; a client uses the first.
VARIABLE_API_KEY: Final = "SPECDECODE_API_KEY"

# On the API port.
PATH_HEALTH: Final = "/health"
PATH_PING: Final = "/ping"
PATH_VERSION: Final = "/version"

# On the management port.
PATH_STARTUP: Final = "/startup"
PATH_READY: Final = "/ready"
PATH_LIVE: Final = "/live"
PATH_DEGRADED: Final = "/degraded"
PATH_PROGRESS: Final = "/progress"
PATH_METRICS: Final = "/metrics"
PATH_SERVER_INFO: Final = "/server_info"
PATH_TABLE: Final = "/speculation/table"
PATH_DRAFT: Final = "/speculation/draft"
PATH_LOAD_ADAPTER: Final = "/v1/load_lora_adapter"
PATH_UNLOAD_ADAPTER: Final = "/v1/unload_lora_adapter"

HEADER_LABEL: Final = "X-Specdecode-Label"
"""One of the engine's configured request labels."""
HEADER_MAX_STEPS: Final = "X-Specdecode-Max-Steps"
"""The most draft steps for the request."""
HEADER_TIMEOUT: Final = "X-Specdecode-Timeout"
"""Seconds that a request waits at a router for an engine that accepts it."""
HEADER_SESSION: Final = "X-Session-Id"
"""Requests with one value go to one engine, if they have no longer prefix on another one."""
HEADER_OWNER: Final = "X-Specdecode-Owner"
"""Uid of the custom resource; permits replacing the table without an API key."""

MAX_REQUEST_LABELS: Final = 4
MAX_CONFIG_HASH_LENGTH: Final = 63
REQUEST_LABEL_PATTERN: Final = "[a-z0-9]([a-z0-9._-]{0,30}[a-z0-9])?"
"""One to 32 characters."""

MAX_CORS_ORIGINS: Final = 16
CORS_ORIGIN_PATTERN: Final = "[*]|https?://[a-z0-9.-]+(:[0-9]{1,5})?"
"""Scheme, host and port of a web page, in lower case and without a path, or * for all."""
HTTP_URL_PATTERN: Final = "https?://[!-~]+"

METRIC_PREFIX: Final = "specdecode_"
