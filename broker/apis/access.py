"""Reviews of tokens and rights, which the API server answers and does not store.

https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-review-v1/ and
https://kubernetes.io/docs/reference/kubernetes-api/authorization-resources/subject-access-review-v1/
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from broker.apis.meta import Kind, Model, Object


class ReviewedUser(Model):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class TokenReviewStatus(Model):
    authenticated: bool = False
    user: ReviewedUser = ReviewedUser()


class TokenReview(Object):
    KIND: ClassVar[Kind] = Kind(group="authentication.k8s.io", version="v1", kind="TokenReview")

    status: TokenReviewStatus = TokenReviewStatus()


class AccessReviewStatus(Model):
    allowed: bool = False
    denied: bool = False


class SubjectAccessReview(Object):
    KIND: ClassVar[Kind] = Kind(group="authorization.k8s.io", version="v1", kind="SubjectAccessReview")

    status: AccessReviewStatus = AccessReviewStatus()
