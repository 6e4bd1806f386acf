"""The module, data and loss that `--model`, `--data` and `--loss` name as MODULE:NAME."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace import submission
from millrace.errors import BadParams, ConfigError

if TYPE_CHECKING:
    from millrace.submission import ModuleOptions, Params


def load(name: str, flag: str) -> Any:
    """Imports what a flag names as MODULE:NAME; modules of the working directory are found.

    Raises ConfigError if there is no such module or name.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"{flag} {name} does not have the form MODULE:NAME, such as net:build")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        value: Any = importlib.import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{flag} {name} can't be imported: {error}") from error
    return value


def params_of(params: str, flags: dict[str, Any]) -> Params:
    """Takes the flags for modules out of `flags`; returns the params of the module, or the path as it is.

    Raises ConfigError if a flag is missing, or the errors of `millrace.torch`.
    """
    names = {name: flags.pop(name, None) for name in ("data", "eval_data", "loss")}
    model = flags.get("model")
    if model is None or ":" not in model:
        if given := [name for name, value in names.items() if value is not None]:
            raise ConfigError(f"--{given[0]} needs a module as --model, such as --model net:build")
        return params
    flags["model"] = None
    options: ModuleOptions = {"loss": load(names["loss"], "--loss") if names["loss"] else None}
    for name in ("data", "eval_data"):
        if (value := names[name]) is not None:
            # Without a colon, it is a path on the appliance.
            options[name] = _called(load(value, f"--{name}")) if ":" in value else value
    module = _module(model)
    if _is_of_keras(module):
        from millrace.keras.training import describe_with_params as describe_model

        return describe_model(module, options, _read(params))
    from millrace.torch.training import describe_with_params

    return describe_with_params(module, options, _read(params))


def _module(name: str) -> Any:
    module = load(name, "--model")
    if not _is_module(module):
        module = _called(module)
    if not _is_module(module):
        raise ConfigError(
            f"--model {name} is of type {type(module).__name__}, not a torch.nn.Module or keras.Model"
        )
    return module


def _is_of_keras(value: Any) -> bool:
    keras: Any = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.Model)


def _is_module(value: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return _is_of_keras(value) or (torch is not None and isinstance(value, torch.nn.Module))


def _called(value: Any) -> Any:
    """Returns what a function or a class returns, and any other value as it is."""
    return value() if callable(value) else value


def _read(params: str) -> dict[str, Any]:
    path = Path(params)
    document = submission.parse(path.read_bytes(), path)
    if not isinstance(document, dict):
        raise BadParams(f"{params} has no sections", status=0, reason="BadParams")
    return document
