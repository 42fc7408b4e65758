"""Disks that a pod names itself: a node has each for one pod at a time, or for its readers."""

from __future__ import annotations

from pydantic import Field

from broker.apis.meta import Model


class GcePersistentDisk(Model):
    pd_name: str = ""
    read_only: bool = False


class AwsElasticBlockStore(Model):
    volume_id: str = Field(default="", alias="volumeID")


class IscsiDisk(Model):
    iqn: str = ""
    read_only: bool = False


class RbdImage(Model):
    monitors: tuple[str, ...] = ()
    image: str = ""
    pool: str = "rbd"
    read_only: bool = False
