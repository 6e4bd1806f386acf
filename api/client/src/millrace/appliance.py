"""The appliance: where jobs are submitted and found."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from millrace import endpoint, submission
from millrace import state as states
from millrace.errors import ConfigError
from millrace.job import Job, collection
from millrace.records import Document, Identity, Plan, Volume
from millrace.submission import Params, Submission, SubmitOptions, Verb
from millrace.transport import Transport

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of the type checker, not a dependency


class Jobs(Iterator[Job]):
    """Jobs as they come from the appliance, page by page; in a notebook, a table of the first ones."""

    SHOWN = 20

    def __init__(self, jobs: Iterator[Job]) -> None:
        self._seen: list[Job] = []
        self._rest = jobs

    def __next__(self) -> Job:
        return self._seen.pop(0) if self._seen else next(self._rest)

    def __repr__(self) -> str:
        # Those that are shown are still to come for whoever iterates.
        self._seen += islice(self._rest, max(0, self.SHOWN + 1 - len(self._seen)))
        lines = [f"{job.name:<32} {job.state}" for job in self._seen[: self.SHOWN]]
        lines += ["..."] if len(self._seen) > self.SHOWN else []
        return "\n".join(lines) or "no jobs"


class Appliance:
    """One appliance, seen with one token.

    Without arguments it is the one of MILLRACE_URL and MILLRACE_TOKEN, or of the current context that
    `millrace login` has written, or else the server on this machine. `context` names another context; `ca`
    is a file with the authority that signed the appliance's certificate. `insecure` accepts any certificate,
    and a token sent unencrypted.

    Requests are repeated for `retry_seconds` when the appliance can't be reached or asks to wait; a
    submission is the same job however often it is repeated. Live streams come back for `reconnect_seconds`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        namespace: str | None = None,
        context: str | None = None,
        *,
        ca: str | None = None,
        insecure: bool | None = None,
        retry_seconds: float = 30.0,
        reconnect_seconds: float = 900.0,
    ) -> None:
        self._endpoint = endpoint.resolve(url, token, namespace, context, ca, insecure)
        self._transport = Transport(
            self._endpoint, retry_seconds=retry_seconds, reconnect_seconds=reconnect_seconds
        )

    def __repr__(self) -> str:
        return f"Appliance({self.url!r}, namespace={self.namespace!r})"

    def __enter__(self) -> Appliance:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the kept connections; jobs go on."""
        self._transport.close()

    @property
    def url(self) -> str:
        """Its address."""
        return self._endpoint.url

    @property
    def namespace(self) -> str:
        """Where jobs are submitted and looked for."""
        return self._endpoint.namespace

    def train(
        self,
        params: Params,
        num_csx: int | None = None,
        name: str | None = None,
        *,
        mode: str | None = None,
        max_steps: int | None = None,
        eval_steps: int | None = None,
        checkpoint_path: str | None = None,
        load_checkpoint_states: str | None = None,
        disable_strict_checkpoint_loading: bool | None = None,
        num_wgt_servers: int | None = None,
        num_act_servers: int | None = None,
        logging: str | None = None,
        priority: str | None = None,
        job_time_sec: int | None = None,
        labels: Mapping[str, str] | None = None,
        mount_dirs: Mapping[str, str] | None = None,
        suspend: bool | None = None,
        spec: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Submit a training, and return at once with its job.

        `params` is a YAML file, sent byte for byte, or a dict. What is not given here is as params say. A
        text of less than 1 MiB that params name in data_dir or data_files, and that is found beside the
        params file or in the working directory, travels along; other paths are the appliance's.

        `mount_dirs` maps volumes of the appliance (see `volumes`) to the paths that params have for them.
        `spec` has further fields of the TrainJob's spec, as {"failurePolicy": {"maxRestarts": 3}}.

        With an `idempotency_key` of one's own, running the same program twice submits one job.
        """
        options = SubmitOptions(
            num_csx=num_csx,
            name=name,
            mode=mode,
            max_steps=max_steps,
            eval_steps=eval_steps,
            checkpoint_path=checkpoint_path,
            load_checkpoint_states=load_checkpoint_states,
            disable_strict_checkpoint_loading=disable_strict_checkpoint_loading,
            num_wgt_servers=num_wgt_servers,
            num_act_servers=num_act_servers,
            logging=logging,
            priority=priority,
            job_time_sec=job_time_sec,
            labels=labels,
            mount_dirs=mount_dirs,
            suspend=suspend,
            spec=spec,
        )
        return self.submit(params, options, verb="train", idempotency_key=idempotency_key)

    def eval(
        self, params: Params, *, idempotency_key: str | None = None, **options: Unpack[SubmitOptions]
    ) -> Job:
        """Submit an evaluation of a checkpoint, or of every one with `mode="eval_all"`.

        Options are those of `train`.
        """
        return self.submit(params, options, verb="eval", idempotency_key=idempotency_key)

    def plan(self, params: Params, **options: Unpack[SubmitOptions]) -> Plan:
        """Whether a job would fit, when it would start and how long it would take. Makes nothing."""
        sent = submission.build(params, options, "plan")
        path = collection(self.namespace) + ":plan"
        return Plan.read(self._transport.json("POST", path, **_body(sent)))

    def validate(self, params: Params, **options: Unpack[SubmitOptions]) -> Document:
        """The TrainJob that would be made, checked by the appliance as if it were; makes nothing."""
        return self.dry_run(params, options)

    def submit(
        self,
        params: Params,
        options: SubmitOptions,
        *,
        verb: Verb = "train",
        idempotency_key: str | None = None,
    ) -> Job:
        """Submit a job, its options as one value; `train` and `eval` are this with arguments."""
        sent = submission.build(params, options, verb)
        body = _body(sent)
        key = idempotency_key or secrets.token_urlsafe(24)
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"The idempotency key {key!r} can't be sent: use ASCII letters, digits and signs."
            )
        body["headers"]["Idempotency-Key"] = key
        document = self._transport.json("POST", collection(self.namespace), **body)
        return Job(self._transport, document)

    def dry_run(self, params: Params, options: SubmitOptions, *, verb: Verb = "train") -> Document:
        """What `submit` would make, as the appliance sees it."""
        sent = submission.build(params, options, verb)
        answer: Document = self._transport.json(
            "POST", collection(self.namespace), params={"dryRun": "All"}, **_body(sent)
        )
        return answer

    def jobs(
        self,
        *,
        state: str | None = None,
        name: str | None = None,
        submitted_by: str | None = None,
        finished: bool | None = None,
        deleted: bool = False,
        all_namespaces: bool = False,
    ) -> Jobs:
        """Return jobs, newest first, including finished ones; pages are fetched as they are needed.

        `state` is one of `millrace.state.NAMES`, such as Training; Failed stands for all failures. Deleted
        jobs that still exist, because a finalizer holds them, are included; with `deleted`, also those of
        which only the history is left. Cancelled jobs are among the latter, so `state="Cancelled"` implies
        `deleted`.
        """
        wanted = None if state is None else states.parse_name(state)
        if state is not None and wanted is None:
            raise ConfigError(f"{state!r} is no state: choose from {', '.join(states.NAMES)}.")
        ended = (states.FAILED, states.DELETING, states.CANCELLED)
        if finished is False and wanted in ended:
            return Jobs(iter(()))  # these are over
        query: dict[str, Any] = {"name": name, "submittedBy": submitted_by, "finished": finished, "limit": 50}
        query["deleted"] = deleted or wanted in (states.DELETING, states.CANCELLED) or None
        if wanted in ended:
            query["finished"] = True
        else:
            query["state"] = wanted
        path = collection("-" if all_namespaces else self.namespace)
        return Jobs(self._pages_of_jobs(path, query, wanted))

    def _pages_of_jobs(self, path: str, query: Mapping[str, Any], wanted: str | None) -> Iterator[Job]:
        cursor: str | None = None
        while True:
            page = self._transport.json("GET", path, params={**query, "cursor": cursor})
            for document in page.get("items") or ():
                if wanted is None or states.matches(document, wanted):
                    yield Job(self._transport, document)
            following = page.get("next")
            if not following or following == cursor:
                return
            cursor = following

    def job(self, name: str, uid: str | None = None) -> Job:
        """A job by its name: the newest of that name, or the one with this uid."""
        path = f"{collection(self.namespace)}/{endpoint.segment(name)}"
        return Job(self._transport, self._transport.json("GET", path, params={"uid": uid}))

    def cluster(self, name: str | None = None) -> Document:
        """Systems, who uses them, and the queue: `name`, `spec`, `status`, `jobs`, `queue`."""
        answer: Document = self._transport.json("GET", "/v1/appliance", params={"name": name})
        return answer

    def volumes(self) -> list[Volume]:
        """The volumes that a job of this namespace can mount."""
        answer = self._transport.json("GET", f"/v1/namespaces/{endpoint.segment(self.namespace)}/volumes")
        return [
            Volume(str(each.get("name")), str(each.get("message") or ""))
            for each in answer.get("items") or ()
        ]

    def whoami(self) -> Identity:
        """Who the token stands for, and what that one may do."""
        answer = self._transport.json("GET", "/v1/whoami")
        return Identity(
            name=str(answer.get("name")),
            role=str(answer.get("role")),
            namespaces=tuple(answer.get("namespaces") or ()),
        )

    def version(self) -> Document:
        """The appliance's `version` and `backend`."""
        answer: Document = self._transport.json("GET", "/v1/version")
        return answer


def _body(sent: Submission) -> dict[str, Any]:
    return {"content": sent.content, "headers": {"Content-Type": sent.content_type}}
