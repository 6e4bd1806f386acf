"""An appliance: submits jobs, finds them, and shows the state of the cluster."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from millrace import endpoint, submission
from millrace import state as states
from millrace.errors import ConfigError, MissingDependency, NotFound
from millrace.job import Job, collection
from millrace.records import Document, Identity, Plan, Volume
from millrace.submission import (
    ModuleOptions,
    Params,
    ParamsWithFiles,
    PlanOptions,
    Submission,
    SubmitOptions,
    Verb,
    unknown_option_error,
)
from millrace.transport import Transport
from millrace.uploads import upload

if TYPE_CHECKING:
    from keras import Model as KerasModel
    from torch.nn import Module
    from typing_extensions import Unpack  # for the type checker only, not a dependency


_MAX_CHECKED_BYTES = 64 << 20
"""Maximum bytes that are uploaded so that a plan can check them."""
_MODULE_OPTIONS = ModuleOptions.__annotations__.keys()


class Jobs(Iterator[Job]):
    """Iterates over jobs and fetches their pages as needed; its `repr` is a table of the first jobs."""

    SHOWN = 20

    def __init__(self, jobs: Iterator[Job]) -> None:
        self._seen: list[Job] = []
        self._rest = jobs

    def __next__(self) -> Job:
        return self._seen.pop(0) if self._seen else next(self._rest)

    def __repr__(self) -> str:
        # The jobs shown here are kept: an iteration still returns them.
        self._seen += islice(self._rest, max(0, self.SHOWN + 1 - len(self._seen)))
        lines = [f"{job.name:<32} {job.state}" for job in self._seen[: self.SHOWN]]
        lines += ["..."] if len(self._seen) > self.SHOWN else []
        return "\n".join(lines) or "no jobs"


class Appliance:
    """A client of one appliance, authenticated with one token. Safe to share between threads.

        with millrace.Appliance("https://millrace.example.org", token) as appliance:
            job = appliance.train("params.yaml", num_csx=4)

    Without arguments it uses MILLRACE_URL and MILLRACE_TOKEN, else the current context that `millrace login`
    has written, else the server on this machine. The arguments:

    * `context`: the context to use instead of the current one.
    * `ca`: a file with the certificate authority that signed the appliance's certificate.
    * `insecure`: accepts any certificate, and sends the token unencrypted if the address is http.
    * `retry_seconds`: how long requests are retried if the appliance can't be reached or asks to wait. A
      retried submission creates one job.
    * `reconnect_seconds`: how long a live stream tries to reconnect.

    Errors are subclasses of `millrace.errors.MillraceError`.
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
        """Closes the connections. Jobs keep running."""
        self._transport.close()

    @property
    def url(self) -> str:
        """The appliance's address."""
        return self._endpoint.url

    @property
    def namespace(self) -> str:
        """The namespace in which jobs are created and listed."""
        return self._endpoint.namespace

    def train(
        self,
        params: Params | Module | KerasModel,
        num_csx: int | None = None,
        name: str | None = None,
        *,
        min_csx: int | None = None,
        model: str | None = None,
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
        **module: Unpack[ModuleOptions],
    ) -> Job:
        """Submits a training job and returns it at once, without waiting for it to start.

            job = appliance.train("params.yaml", num_csx=4, max_steps=1000)

        `params` is a YAML file, which is sent unchanged, or a dict. An option that is None is left to params,
        or to the appliance's default. Files and directories that the params name are uploaded if they exist
        next to the params file or in the working directory; all other paths are paths of the appliance.

        A PyTorch module in place of params is trained with the given data, loss and optimizer, from its
        current weights; `job.state_dict()` returns the trained ones (extra `torch`):

            job = appliance.train(
                model, loss=torch.nn.functional.cross_entropy, data={"image": images, "labels": labels},
                optimizer=torch.optim.AdamW(model.parameters()), batch_size=64, max_steps=1000, num_csx=4)

        * `loss(model(*all but the last), the last)` is minimized. Without `loss`, the module is called with
          the data by their names and returns the loss, as a tensor or under the name `loss`, as models of
          `transformers` do. `call(model, *data)` replaces both.
        * `data` and `eval_data`: a mapping of names to arrays, a `TensorDataset`, the path of such arrays on
          the appliance (then with `example`, a batch of two samples), or a dict that is `train_input` of the
          params. `shuffle=False` reads them in their order.
        * A dataset with `__len__` and `__getitem__`, a `DataLoader`, or a `millrace.loader.PythonDataset` is
          packed with its modules and read by `num_workers` processes of each activation server.
        * `optimizer`: its groups and hyperparameters; `scheduler`: evaluated for each step.
        * `mixed_precision=True` computes products in bfloat16; `runconfig` has further keys of the params.

        A Keras model, or a `tf.function` that returns the loss, is trained the same way (extra `keras`);
        `job.update(model)` assigns the trained weights:

            job = appliance.train(model, data=(x, y), batch_size=64, max_steps=1000, num_csx=4)

        * Loss and optimizer are those of `model.compile` unless `loss` and `optimizer` are given.
        * `data` and `eval_data`: x or (x, y) as for `fit`; for a function, a mapping of the names of its
          parameters to arrays.

        With `min_csx`, the job continues on that many systems or more while lost ones are replaced.

        `model` is the family of the model, such as "gpt3", for params that do not name it.

        `mount_dirs` maps volumes of the appliance (see `volumes`) to the paths that params use for them.
        `spec` has further fields of the TrainJob's spec, such as {"failurePolicy": {"maxRestarts": 3}}.

        Two calls with the same `idempotency_key` and the same arguments create one job, also in two runs of a
        program.

        Raises `errors.BadParams` or `errors.Invalid` if the appliance rejects the job, `errors.AlreadyExists`
        if the name is in use, and OSError if the params file can't be read.
        """
        options = SubmitOptions(
            num_csx=num_csx,
            min_csx=min_csx,
            name=name,
            model=model,
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
        described = _described(params, module, options)
        return self.submit(described, options, verb="train", idempotency_key=idempotency_key)

    def eval(
        self, params: Params, *, idempotency_key: str | None = None, **options: Unpack[SubmitOptions]
    ) -> Job:
        """Submits an evaluation of one checkpoint, or of all checkpoints with `mode="eval_all"`.

        The options are those of `train`.
        """
        return self.submit(params, options, verb="eval", idempotency_key=idempotency_key)

    def plan(self, params: Params | Module | KerasModel, **options: Unpack[PlanOptions]) -> Plan:
        """Returns whether a job fits, when it would start and how long it would take. Creates nothing.

        Of the files of the job, only a graph document is uploaded. The options are those of `train`.
        """
        remaining: dict[str, Any] = dict(options)
        module = cast(ModuleOptions, {key: remaining.pop(key) for key in _MODULE_OPTIONS & remaining.keys()})
        submitted = cast(SubmitOptions, remaining)
        described = _described(params, module, submitted)
        sent = self._prepared(described, submitted, "plan", for_check=True)
        path = collection(self.namespace) + ":plan"
        return Plan.read(self._transport.json("POST", path, **_body(sent)))

    def validate(self, params: Params, **options: Unpack[SubmitOptions]) -> Document:
        """Returns the TrainJob that `train` would create, as validated by the appliance. Creates nothing."""
        return self.dry_run(params, options)

    def submit(
        self,
        params: Params,
        options: SubmitOptions,
        *,
        verb: Verb = "train",
        idempotency_key: str | None = None,
    ) -> Job:
        """Submits a job with its options as one dict. `train` and `eval` call this method.

        Raises the errors of `train`, and ConfigError if the idempotency key has characters other than
        printable ASCII.
        """
        sent = self._prepared(params, options, verb)
        body = _body(sent)
        key = idempotency_key or secrets.token_urlsafe(24)
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(f"invalid idempotency key {key!r}: use printable ASCII characters")
        body["headers"]["Idempotency-Key"] = key
        document = self._transport.json("POST", collection(self.namespace), **body)
        module = params.module if isinstance(params, ParamsWithFiles) else None
        return Job(self._transport, document, module)

    def dry_run(self, params: Params, options: SubmitOptions, *, verb: Verb = "train") -> Document:
        """Returns the TrainJob that `submit` would create, as validated by the appliance. Creates nothing."""
        sent = self._prepared(params, options, verb, for_check=True)
        answer: Document = self._transport.json(
            "POST", collection(self.namespace), params={"dryRun": "All"}, **_body(sent)
        )
        return answer

    def _prepared(
        self,
        params: Params,
        options: SubmitOptions,
        verb: Verb,
        *,
        for_check: bool = False,
    ) -> Submission:
        """Builds the body of a request, and uploads what it names.

        With `for_check`, the request creates no job: of much data, and of a module, only the graph is
        uploaded.
        """
        sent = submission.build(params, options, verb)
        needed = list(sent.blobs.values())
        is_module = isinstance(params, ParamsWithFiles)
        if isinstance(params, ParamsWithFiles) and not for_check:
            for line in params.summary:
                print(line, file=sys.stderr)
        if for_check and (is_module or sum(blob.size for blob in needed) > _MAX_CHECKED_BYTES):
            needed = [sent.graph] if sent.graph else []
        try:
            upload(self._transport, self.namespace, needed, progress=True)
        except NotFound:
            if is_module:
                raise
            return submission.build(params, options, verb, has_blobs=False)
        return sent

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
        """Returns jobs, newest first, including finished ones. Pages are fetched as they are needed.

        `state` is one of `millrace.state.NAMES`, such as Training; Failed stands for all failures.
        `submitted_by` is the name of a user. Deleted jobs that still exist, because a finalizer holds them,
        are included; with `deleted`, also deleted ones whose history is still stored. Cancelled jobs are
        among the latter, so `state="Cancelled"` implies `deleted`. Raises ConfigError for an unknown state.
        """
        wanted = None if state is None else states.parse_name(state)
        if state is not None and wanted is None:
            raise ConfigError(f"unknown state {state!r}: choose from {', '.join(states.NAMES)}")
        ended = (states.FAILED, states.DELETING, states.CANCELLED)
        if finished is False and wanted in ended:
            return Jobs(iter(()))  # deleted and failed jobs are finished
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
        """Returns the newest job with this name, or the one with this `uid`. Raises `errors.NotFound`."""
        path = f"{collection(self.namespace)}/{endpoint.segment(name)}"
        return Job(self._transport, self._transport.json("GET", path, params={"uid": uid}))

    def cluster(self, name: str | None = None) -> Document:
        """Returns the state of the appliance: `name`, `spec`, `status`, `jobs` with systems, `queue`."""
        answer: Document = self._transport.json("GET", "/v1/appliance", params={"name": name})
        return answer

    def volumes(self) -> list[Volume]:
        """Returns the volumes that jobs of this namespace can mount."""
        answer = self._transport.json("GET", f"/v1/namespaces/{endpoint.segment(self.namespace)}/volumes")
        return [
            Volume(str(each.get("name")), str(each.get("message") or ""))
            for each in answer.get("items") or ()
        ]

    def whoami(self) -> Identity:
        """Returns the name and role of the token's owner."""
        answer = self._transport.json("GET", "/v1/whoami")
        return Identity(
            name=str(answer.get("name")),
            role=str(answer.get("role")),
            namespaces=tuple(answer.get("namespaces") or ()),
        )

    def version(self) -> Document:
        """Returns the server's `version` and `backend`."""
        answer: Document = self._transport.json("GET", "/v1/version")
        return answer


def _described(params: Params | Module | KerasModel, module: ModuleOptions, options: SubmitOptions) -> Params:
    """Describes the training of a module, model or function by params; returns params as they are.

    Raises ConfigError if an option is unknown, or is one for modules beside params.
    """
    if unknown := sorted(module.keys() - _MODULE_OPTIONS):
        raise unknown_option_error(unknown[0], _MODULE_OPTIONS | SubmitOptions.__annotations__.keys())
    # Without the package of a kind, there is none of that kind.
    imported: dict[str, Any] = sys.modules
    steps, mode = options.get("max_steps"), options.get("mode")
    try:
        if (keras := imported.get("keras")) and isinstance(params, keras.Model):
            from millrace.keras.training import describe

            return describe(params, module, steps, mode)
        if (tf := imported.get("tensorflow")) and isinstance(
            params, tf.types.experimental.PolymorphicFunction
        ):
            from millrace.keras.function import describe_function

            return describe_function(params, module, steps, mode)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors", "keras"):
            raise
        what = "training a Keras model or a tf.function"
        raise MissingDependency("'millrace[keras]'", what) from error
    if (torch := imported.get("torch")) and isinstance(params, torch.nn.Module):
        from millrace.torch.training import describe as describe_module

        return describe_module(params, module, steps, mode)
    if module:
        name = min(module)
        raise ConfigError(
            f"{name} is an option for a PyTorch module, a Keras model or a tf.function, but params were given"
        )
    return cast(Params, params)


def _body(sent: Submission) -> dict[str, Any]:
    return {"content": sent.content, "headers": {"Content-Type": sent.content_type}}
