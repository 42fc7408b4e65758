"""The field names of pods, of the workloads that make pods, and of metadata, in the form of a CRD's schema.

These kinds have no CRD, and the models of `broker.apis.core` leave out most fields. The names are those of
Kubernetes 1.37 (https://kubernetes.io/docs/reference/kubernetes-api/). A name without a schema of its own is
not described further.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Schema = Mapping[str, Any]
PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"


def _fields(names: str, **described: Schema) -> Schema:
    """An object with these fields; `described` are those with a schema of their own."""
    return {"properties": {name: {} for name in names.split()} | described}


def _list(items: Schema) -> Schema:
    return {"items": items}


METADATA: Final = _fields(
    "annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName "
    "generation labels managedFields name namespace resourceVersion selfLink uid",
    ownerReferences=_list(_fields("apiVersion blockOwnerDeletion controller kind name uid")),
)

_EXPRESSIONS: Final = _list(_fields("key operator values"))
_SELECTOR: Final = _fields("matchLabels", matchExpressions=_EXPRESSIONS)
_NODE_TERM: Final = _fields("", matchExpressions=_EXPRESSIONS, matchFields=_EXPRESSIONS)
_NODE_AFFINITY: Final = _fields(
    "",
    requiredDuringSchedulingIgnoredDuringExecution=_fields("", nodeSelectorTerms=_list(_NODE_TERM)),
    preferredDuringSchedulingIgnoredDuringExecution=_list(_fields("weight", preference=_NODE_TERM)),
)
_POD_TERM: Final = _fields(
    "matchLabelKeys mismatchLabelKeys namespaces topologyKey",
    labelSelector=_SELECTOR,
    namespaceSelector=_SELECTOR,
)
_POD_AFFINITY: Final = _fields(
    "",
    requiredDuringSchedulingIgnoredDuringExecution=_list(_POD_TERM),
    preferredDuringSchedulingIgnoredDuringExecution=_list(_fields("weight", podAffinityTerm=_POD_TERM)),
)
_RESOURCES: Final = _fields("claims limits requests")
_CONTAINER: Final = _fields(
    "args command env envFrom image imagePullPolicy lifecycle livenessProbe name readinessProbe resizePolicy "
    "restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath "
    "terminationMessagePolicy tty volumeDevices volumeMounts workingDir",
    ports=_list(_fields("containerPort hostIP hostPort name protocol")),
    resources=_RESOURCES,
)
_POD_SPEC: Final = _fields(
    "activeDeadlineSeconds automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks "
    "ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride "
    "imagePullSecrets nodeName nodeSelector os overhead preemptionPolicy priority priorityClassName "
    "readinessGates resourceClaims restartPolicy runtimeClassName schedulerName schedulingGates "
    "schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN "
    "shareProcessNamespace subdomain terminationGracePeriodSeconds",
    affinity=_fields(
        "", nodeAffinity=_NODE_AFFINITY, podAffinity=_POD_AFFINITY, podAntiAffinity=_POD_AFFINITY
    ),
    containers=_list(_CONTAINER),
    initContainers=_list(_CONTAINER),
    resources=_RESOURCES,
    tolerations=_list(_fields("effect key operator tolerationSeconds value")),
    topologySpreadConstraints=_list(
        _fields(
            "matchLabelKeys maxSkew minDomains nodeAffinityPolicy nodeTaintsPolicy topologyKey "
            "whenUnsatisfiable",
            labelSelector=_SELECTOR,
        )
    ),
    volumes=_list(
        _fields(
            "awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir "
            "ephemeral fc flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi name "
            "nfs persistentVolumeClaim photonPersistentDisk portworxVolume projected quobyte rbd scaleIO "
            "secret storageos vsphereVolume"
        )
    ),
)
_TEMPLATE: Final = _fields("", metadata=METADATA, spec=_POD_SPEC)
_JOB_SPEC: Final = _fields(
    "activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions managedBy "
    "manualSelector maxFailedIndexes parallelism podFailurePolicy podReplacementPolicy selector "
    "successPolicy suspend ttlSecondsAfterFinished",
    template=_TEMPLATE,
)
_JOB_TEMPLATE: Final = _fields("", metadata=METADATA, spec=_JOB_SPEC)


def _object(spec: Schema) -> Schema:
    return _fields("apiVersion kind status", metadata=METADATA, spec=spec)


# Of a JobSet only the Jobs are described: its own fields are those of its version.
_JOB_SETS: Final = {
    "properties": {"replicatedJobs": _list({"properties": {"template": _JOB_TEMPLATE}, PRESERVE: True})},
    PRESERVE: True,
}
# By group and kind.
WORKLOADS: Final[Mapping[tuple[str, str], Schema]] = {
    ("", "Pod"): _object(_POD_SPEC),
    ("apps", "Deployment"): _object(
        _fields(
            "minReadySeconds paused progressDeadlineSeconds replicas revisionHistoryLimit selector strategy",
            template=_TEMPLATE,
        )
    ),
    ("apps", "ReplicaSet"): _object(_fields("minReadySeconds replicas selector", template=_TEMPLATE)),
    ("apps", "StatefulSet"): _object(
        _fields(
            "minReadySeconds ordinals persistentVolumeClaimRetentionPolicy podManagementPolicy replicas "
            "revisionHistoryLimit selector serviceName updateStrategy volumeClaimTemplates",
            template=_TEMPLATE,
        )
    ),
    ("apps", "DaemonSet"): _object(
        _fields("minReadySeconds revisionHistoryLimit selector updateStrategy", template=_TEMPLATE)
    ),
    ("batch", "Job"): _object(_JOB_SPEC),
    ("batch", "CronJob"): _object(
        _fields(
            "concurrencyPolicy failedJobsHistoryLimit schedule startingDeadlineSeconds "
            "successfulJobsHistoryLimit suspend timeZone",
            jobTemplate=_JOB_TEMPLATE,
        )
    ),
    ("jobset.x-k8s.io", "JobSet"): _object(_JOB_SETS),
}
