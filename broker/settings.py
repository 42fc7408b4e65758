"""Every option of the broker, once: its flag, its environment variable, its default and its meaning.

The command line is built from this class (`broker.options`): no option has a second name or default.
"""

from __future__ import annotations

import math
import socket
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Final

import typer

from broker import option_rules as rules
from broker.capacity.model import LaunchDefaults
from broker.option_rules import listed
from broker.placement.holds_bounds import RoomBounds
from broker.reservations.desired import Caps
from broker.reservations.ownership import Adopters
from providers.model import PLAIN_OFFER

# The headings of options in `--help`.
NODES: Final = "Cluster that instances join"
AWS: Final = "AWS"
KUBERNETES: Final = "Kubernetes"
REPLICA: Final = "This replica"
LAUNCHING: Final = "Planning and launching"
KARPENTER: Final = "Beside Karpenter"
RESERVATIONS: Final = "CapacityReservations"
BUYING: Final = "Reserving in EC2"
CLUSTERS: Final = "Dedicated clusters"
PODS: Final = "Scheduling pods"
WEB: Final = "Web page and history"
NOTIFY: Final = "Notifications"
LOG: Final = "Log"
RESPECT: Final = "Respect"


def _option(help_: str, *, about: str, envvar: str | None = None) -> Any:
    """`envvar`: the environment variable, if it is not BROKER_ and the name of the field."""
    return typer.Option(help=help_, envvar=envvar, show_envvar=True, rich_help_panel=about)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a broker; see `capacity-broker run --help`."""

    cluster_name: Annotated[
        str,
        _option(
            "Name of the cluster that instances join; its tag marks them.", about=NODES, envvar="CLUSTER_NAME"
        ),
        rules.cluster_name,
    ] = ""
    cluster_endpoint: Annotated[
        str,
        _option(
            "API server URL for nodes; empty: that of the EKS cluster.",
            about=NODES,
            envvar="CLUSTER_ENDPOINT",
        ),
        rules.url,
    ] = ""
    cluster_ca: Annotated[
        str,
        _option(
            "Base64 CA bundle for nodes; empty: the service account's in a pod, else the EKS cluster's.",
            about=NODES,
            envvar="CLUSTER_CA_BUNDLE",
        ),
        rules.base64,
    ] = ""
    service_cidr: Annotated[
        str,
        _option(
            "Service CIDR for nodes; empty: the cluster's own. Any other one is rejected.",
            about=NODES,
            envvar="CLUSTER_SERVICE_CIDR",
        ),
        rules.cidr,
    ] = ""
    region: Annotated[
        str,
        _option(
            "AWS Region; empty: that of AWS_DEFAULT_REGION, then of the profile. One must be set.",
            about=AWS,
            envvar="AWS_REGION",
        ),
    ] = ""
    aws_endpoint: Annotated[
        str,
        _option("One endpoint for all of AWS; empty means AWS itself.", about=AWS, envvar="AWS_ENDPOINT_URL"),
        rules.url,
    ] = ""
    aws_profile: Annotated[
        str, _option("Profile of the AWS configuration.", about=AWS, envvar="AWS_PROFILE")
    ] = ""
    kubeconfig: Annotated[
        str,
        _option(
            "Kubeconfig file; empty means in-cluster, then ~/.kube/config.",
            about=KUBERNETES,
            envvar="KUBECONFIG",
        ),
    ] = ""
    context: Annotated[str, _option("Context of the kubeconfig.", about=KUBERNETES)] = ""
    namespace: Annotated[
        str, _option("Namespace of the webhook's Service and certificates.", about=REPLICA), rules.name
    ] = "kube-system"
    identity: Annotated[
        str, _option("Name of this replica in the Lease.", about=REPLICA, envvar="HOSTNAME")
    ] = socket.gethostname()
    leader_election: Annotated[
        bool,
        _option(
            "Stand for election: the holder of the Lease acts. Off: this replica only serves the webhook.",
            about=REPLICA,
        ),
    ] = True
    http_host: Annotated[str, _option("Address of /metrics, /healthz and /readyz.", about=REPLICA)] = (
        "127.0.0.1"
    )
    http_port: Annotated[
        int, _option("Port of /metrics, /healthz and /readyz; 0 picks a free one.", about=REPLICA), rules.port
    ] = 8080
    poll_seconds: Annotated[
        float,
        _option("Seconds between two descriptions of the reservations.", about=LAUNCHING),
        rules.seconds(1),
    ] = 30.0
    plan_seconds: Annotated[
        float,
        _option(
            "Seconds for a plan, with all its steps; claims that do not fit are planned next.",
            about=LAUNCHING,
        ),
        rules.seconds(0, more=True),
    ] = 5.0
    pod_batch_idle_seconds: Annotated[
        float,
        _option(
            "Seconds without a new pending pod after which NodePools of the broker's group are served.",
            about=LAUNCHING,
        ),
        rules.seconds(0),
    ] = 1.0
    pod_batch_max_seconds: Annotated[
        float,
        _option("Seconds that the first pending pod waits at most for others.", about=LAUNCHING),
        rules.seconds(0),
    ] = 10.0
    preference_policy: Annotated[
        str,
        _option(
            "Respect: preferences of pods count as in Karpenter, until a pod gets no machine; Ignore: they "
            "do not.",
            about=LAUNCHING,
        ),
        rules.one_of(RESPECT, "Ignore"),
    ] = RESPECT
    price_ceiling: Annotated[
        float,
        _option(
            "Most that a claim pays outside reservations, as a factor over its cheapest option.",
            about=LAUNCHING,
        ),
        rules.factor,
    ] = 10.0
    fallback_premium: Annotated[
        float,
        _option(
            "Share that an on-demand instance may cost more so that EC2 can count it in a reservation later.",
            about=LAUNCHING,
        ),
        rules.share,
    ] = 0.1
    absorption_seconds: Annotated[
        float,
        _option(
            "Seconds that EC2 has to count a running instance in an idle slot, before a new node goes there.",
            about=LAUNCHING,
        ),
        rules.seconds(0),
    ] = 120.0
    gang_hold_seconds: Annotated[
        float,
        _option(
            "Seconds that free slots are held for a gang that outranks other claims; 0 holds none.",
            about=LAUNCHING,
        ),
        rules.seconds(0),
    ] = 600.0
    orphan_grace_seconds: Annotated[
        float,
        _option("Seconds that an instance without a claim is kept for a claim to adopt.", about=LAUNCHING),
        rules.seconds(0),
    ] = 120.0
    take_over_karpenter: Annotated[
        bool,
        _option(
            "Also launch claims of group karpenter.k8s.aws, but not while Karpenter's Lease is alive.",
            about=KARPENTER,
        ),
    ] = False
    advise: Annotated[
        bool,
        _option(
            "Write the reservations of capacityReservationSpec into the selector terms that Karpenter reads.",
            about=KARPENTER,
        ),
    ] = True
    interruption_queue: Annotated[
        str,
        _option(
            "SQS queue (name, or URL) of EC2's notices about instances; empty: none is read.", about=LAUNCHING
        ),
    ] = ""
    isolated_vpc: Annotated[
        bool,
        _option(
            "The VPC does not reach AWS's price list: use the prices shipped with the broker.",
            about=LAUNCHING,
        ),
    ] = False
    vm_memory_overhead_percent: Annotated[
        float,
        _option(
            "Share of an instance's memory that hypervisor and kernel keep; the same as Karpenter's.",
            about=LAUNCHING,
        ),
        rules.share,
    ] = 0.075
    reserved_enis: Annotated[
        int,
        _option(
            "Network interfaces of each instance that carry no pods; the same as Karpenter's.",
            about=LAUNCHING,
        ),
        rules.whole(noun="a count"),
    ] = 0
    keep_definition: Annotated[
        bool,
        _option(
            "Add capacityReservationSpec to Karpenter's definition of EC2NodeClass, and put it back when an "
            "upgrade drops it.",
            about=KARPENTER,
        ),
    ] = False
    strict: Annotated[
        bool,
        _option(
            "Reject reservations of OME that need a correction, in the webhook and in the controllers.",
            about=RESERVATIONS,
        ),
    ] = False
    default_cohort: Annotated[
        str,
        _option(
            "Cohort of reservations that may borrow and name none; empty: those are invalid.",
            about=RESERVATIONS,
        ),
    ] = ""
    reservation_creating_seconds: Annotated[
        float,
        _option(
            "Seconds that a CapacityReservation may lack hardware before it is Failed.", about=RESERVATIONS
        ),
        rules.seconds(1),
    ] = 600.0
    reservation_updating_seconds: Annotated[
        float,
        _option(
            "Seconds that a change of a CapacityReservation may take before it is Failed.", about=RESERVATIONS
        ),
        rules.seconds(1),
    ] = 3600.0
    reservation_steady_seconds: Annotated[
        float,
        _option(
            "Seconds until an unavailable or returned node changes a CapacityReservation's allocatable.",
            about=RESERVATIONS,
        ),
        rules.seconds(0),
    ] = 60.0
    webhook_port: Annotated[
        int,
        _option(
            "Port of the validating webhook, at the address of /metrics; 0: there is none.", about=REPLICA
        ),
        rules.port,
    ] = 0
    webhook_service: Annotated[
        str,
        _option(
            "Service in the broker's namespace by which the API server reaches the webhook.", about=REPLICA
        ),
        rules.name,
    ] = "capacity-broker"
    buy_dollars: Annotated[
        float,
        _option(
            "Dollars an hour that all purchases of the broker in EC2 may cost; 0: it buys nothing.",
            about=BUYING,
        ),
        rules.dollars,
    ] = 0.0
    buy_dollars_each: Annotated[
        float,
        _option(
            "The same for each CapacityReservation; 0: a quarter of --buy-dollars; inf: no limit of its own.",
            about=BUYING,
        ),
        rules.dollars,
    ] = 0.0
    buy_dollars_namespace: Annotated[
        float,
        _option(
            "The same for all of a namespace; 0: half of --buy-dollars; inf: no limit of its own.",
            about=BUYING,
        ),
        rules.dollars,
    ] = 0.0
    buy_instances: Annotated[
        int,
        _option(
            "Instances that all purchases of the broker in EC2 may have; 0: only dollars limit them.",
            about=BUYING,
        ),
        rules.whole(noun="a count"),
    ] = 0
    buy_instances_each: Annotated[
        int,
        _option(
            "The same for each CapacityReservation; 0: a quarter of --buy-instances, rounded up.",
            about=BUYING,
        ),
        rules.whole(noun="a count"),
    ] = 0
    buy_instances_namespace: Annotated[
        int,
        _option("The same for all of a namespace; 0: half of --buy-instances, rounded up.", about=BUYING),
        rules.whole(noun="a count"),
    ] = 0
    buy_platforms: Annotated[
        str,
        _option("Platforms, with commas, that a CapacityReservation's annotation may buy.", about=BUYING),
        rules.platforms,
    ] = PLAIN_OFFER[0]
    buy_tenancies: Annotated[
        str,
        _option("Tenancies, with commas, that a CapacityReservation's annotation may buy.", about=BUYING),
        rules.tenancies,
    ] = PLAIN_OFFER[1]
    adopt_by_annotation: Annotated[
        str,
        _option(
            "Namespaces, with commas. Their CapacityReservations may adopt EC2 reservations and groups by "
            "annotation; NAMESPACE=ID or NAMESPACE=ARN: only that one; *: all, and cluster-wide ones.",
            about=RESERVATIONS,
        ),
        rules.adopters,
    ] = ""
    buy_zones: Annotated[
        str,
        _option(
            "Zones, with commas, in order, of flavors without a zone; empty: all that offer the type.",
            about=BUYING,
        ),
    ] = ""
    release_idle_seconds: Annotated[
        float,
        _option(
            "Seconds that a purchased slot may be idle before it is returned; 0: for ever.", about=BUYING
        ),
        rules.seconds(0),
    ] = 0.0
    cost_labels: Annotated[
        str,
        _option(
            "Labels of a CapacityReservation, with commas, that become tags of its purchases.", about=BUYING
        ),
    ] = ""
    dedicated_node_class: Annotated[
        str,
        _option(
            "EC2NodeClass of dedicated clusters, if cluster, profile and reservation name none.",
            about=CLUSTERS,
        ),
        rules.name,
    ] = "default"
    dedicated_wait_seconds: Annotated[
        float,
        _option(
            "Seconds to wait for quota before a dedicated cluster is marked Failed. It keeps waiting.",
            about=CLUSTERS,
        ),
        rules.seconds(0),
    ] = 600.0
    scheduler: Annotated[
        str,
        _option(
            "on: this process also places pods while it holds the scheduler's Lease; off: it does not; only: "
            "it does nothing else, and needs no AWS.",
            about=PODS,
        ),
        rules.one_of("on", "off", "only"),
    ] = "on"
    scheduler_names: Annotated[
        str,
        _option(
            "Scheduler names of pods and reservations that the broker places, with commas; empty: none. Each "
            "is in force while the kinds of its project are installed. Leave out a name that runs already.",
            about=PODS,
        ),
    ] = "koord-scheduler,godel-scheduler,nos-scheduler,capacity-broker"
    restricted_node_fallback: Annotated[
        bool,
        _option(
            "An owner that does not fit into its Restricted reservation runs beside it, as in Koordinator; "
            "otherwise it waits.",
            about=PODS,
        ),
    ] = False
    quota_absent_is_zero: Annotated[
        bool,
        _option(
            "CPU and memory that an elastic quota does not name have the limit 0, as in nos; otherwise they "
            "are unconstrained.",
            about=PODS,
        ),
    ] = False
    gpu_memory_gb: Annotated[
        int,
        _option(
            "GB of GPU memory that one nvidia.com/gpu counts in elastic quotas, on nodes without Karpenter's "
            "label for it.",
            about=PODS,
        ),
        rules.whole(noun="a count"),
    ] = 32
    reservation_ttl: Annotated[
        int,
        _option(
            "Seconds for which the room of a deleted Gödel pod is kept; its annotation, then that of its "
            "Deployment precede.",
            about=PODS,
        ),
        rules.whole(noun="a count"),
    ] = 60
    longest_reservation_ttl: Annotated[
        int,
        _option(
            "Seconds for which any reservation keeps room at most, Koordinator's and Gödel's, whatever its "
            "own time; 0 sets no bound.",
            about=PODS,
        ),
        rules.whole(noun="a count"),
    ] = 24 * 3600
    kept_room_share: Annotated[
        int,
        _option(
            "Percent of a namespace's ResourceQuotas that the room of its deleted pods may take, unless its "
            "annotation has amounts.",
            about=PODS,
        ),
        rules.whole(100, noun="percent"),
    ] = 50
    web: Annotated[bool, _option("Serve the web page.", about=WEB)] = False
    web_host: Annotated[
        str,
        _option(
            "Address of the web page. One that other machines reach needs --web-user-header or --web-tokens.",
            about=WEB,
        ),
    ] = "127.0.0.1"
    web_port: Annotated[int, _option("Port of the web page; 0 picks a free one.", about=WEB), rules.port] = (
        8081
    )
    web_user_header: Annotated[
        str,
        _option(
            "Header in which a proxy passes the user of the web page, such as X-Forwarded-User; empty: none.",
            about=WEB,
        ),
        rules.header,
    ] = ""
    web_groups_header: Annotated[
        str,
        _option("Header in which the proxy passes the user's groups, with commas; empty: none.", about=WEB),
        rules.header,
    ] = ""
    web_proxies: Annotated[
        str,
        _option("CIDR blocks, with commas, of the proxies that may set these headers.", about=WEB),
        rules.proxies,
    ] = ""
    web_tokens: Annotated[
        bool, _option("Accept bearer tokens of the cluster on the web page, by a TokenReview.", about=WEB)
    ] = False
    history: Annotated[
        str,
        _option(
            "Database of the history: a path for SQLite, a postgresql:// URL, or memory, which a restart "
            "empties.",
            about=WEB,
        ),
        rules.database,
    ] = "memory"
    history_days: Annotated[
        float, _option("Days that the history keeps an entry.", about=WEB), rules.days
    ] = 30.0
    history_entries: Annotated[
        int,
        _option("Entries that the history keeps at most, about 1 KiB each.", about=WEB),
        rules.whole(noun="a count", least=1),
    ] = 200_000
    history_mebibytes: Annotated[
        int,
        _option("MiB that the history takes at most, in memory or in SQLite's file.", about=WEB),
        rules.whole(1_000_000, noun="MiB", least=64),
    ] = 512
    notify_alertmanager: Annotated[
        str,
        _option(
            "URL of an Alertmanager that gets alerts of lasting shortages, ending reservations and reached "
            "spending caps; empty: none.",
            about=NOTIFY,
        ),
        rules.receiver,
    ] = ""
    notify_webhook: Annotated[
        str,
        _option(
            "URL that gets one message when such an alert begins and one when it is over; empty: none.",
            about=NOTIFY,
        ),
        rules.receiver,
    ] = ""
    runbooks: Annotated[
        str,
        _option(
            "URL of the folder of runbooks, for links in alerts; empty: on the web page of this machine.",
            about=NOTIFY,
        ),
        rules.url,
    ] = ""
    log_level: Annotated[
        str,
        _option("debug, info, warning or error.", about=LOG),
        rules.one_of("debug", "info", "warning", "error"),
    ] = "info"
    log_format: Annotated[
        str,
        _option("json or console; auto means console on a terminal.", about=LOG),
        rules.one_of("json", "console", "auto"),
    ] = "auto"

    @property
    def bought_zones(self) -> tuple[str, ...]:
        """`buy_zones`, each by itself."""
        return listed(self.buy_zones)

    @property
    def schedulers(self) -> tuple[str, ...]:
        """`scheduler_names`, each by itself."""
        return listed(self.scheduler_names)

    @property
    def room_bounds(self) -> RoomBounds:
        """The operator's bounds on kept room."""
        return RoomBounds(
            default=self.reservation_ttl, longest=self.longest_reservation_ttl, share=self.kept_room_share
        )

    @property
    def service_range(self) -> IPv4Network | IPv6Network | None:
        return ip_network(self.service_cidr) if self.service_cidr else None

    @property
    def adopters(self) -> Adopters:
        return Adopters.parse(listed(self.adopt_by_annotation))

    @property
    def offers(self) -> frozenset[tuple[str, str]]:
        """Each platform and tenancy that may be bought."""
        platforms, tenancies = listed(self.buy_platforms), listed(self.buy_tenancies)
        return frozenset((platform, tenancy) for platform in platforms for tenancy in tenancies)

    @property
    def respects_preferences(self) -> bool:
        return self.preference_policy == RESPECT

    @property
    def launch_defaults(self) -> LaunchDefaults:
        return LaunchDefaults(
            vm_memory_percent=self.vm_memory_overhead_percent,
            reserved_enis=self.reserved_enis,
            price_ceiling=self.price_ceiling,
            fallback_premium=self.fallback_premium,
            gang_hold_seconds=self.gang_hold_seconds,
        )

    @property
    def caps(self) -> Caps:
        return Caps(
            dollars=self.buy_dollars,
            dollars_each=self.buy_dollars_each or self.buy_dollars / 4,
            dollars_namespace=self.buy_dollars_namespace or self.buy_dollars / 2,
            instances=self.buy_instances or math.inf,
            instances_each=self.buy_instances_each or math.ceil(self.buy_instances / 4) or math.inf,
            instances_namespace=self.buy_instances_namespace or math.ceil(self.buy_instances / 2) or math.inf,
        )
