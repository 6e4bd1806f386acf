"""The commands login, logout, config and completion."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from millrace import errors
from millrace.cli import base, render
from millrace.cli.base import Settings
from millrace.cli.exit_codes import Exit

if TYPE_CHECKING:
    from millrace.config import Config

_context_argument = click.argument("name", metavar="NAME", shell_complete=base.complete_contexts)


@click.command(cls=base.Command)
@click.argument("address", metavar="URL")
@click.option("--name", metavar="CONTEXT", help="Name of the context. Default: the host name.")
@click.option("--token", metavar="-", help="Read the token from standard input. Default: prompt for it.")
@base.pass_settings
def login(settings: Settings, address: str, name: str | None, token: str | None) -> None:
    """Stores address and token of an appliance as a context and makes it the current one."""
    from millrace import endpoint

    if token not in (None, "-"):
        raise click.UsageError(
            "a token on the command line is visible to other users: pass it on standard input with --token -"
        )
    if token == "-":
        settings.token_file = "-"
    address = endpoint.normalize_url(address)
    access_token = _token(settings)
    settings.context = None
    with settings.appliance(address, access_token) as appliance:
        identity = appliance.whoami()
    chosen = name or _name_of(address)
    namespace = settings.namespace
    if namespace is None and identity.namespaces and "*" not in identity.namespaces:
        namespace = identity.namespaces[0]
    config = _config()
    ca = str(Path(settings.ca).resolve()) if settings.ca else None
    config.set(chosen, url=address, token=access_token or None, namespace=namespace, ca=ca)
    config.current = chosen
    config.save()
    click.echo(
        f"logged in to {address} as {identity.name} ({identity.role}); current context: {chosen}", err=True
    )
    _warn_about_environment()


def _warn_about_environment() -> None:
    """Warns that MILLRACE_URL takes precedence over the context that was just selected."""
    if address := os.environ.get("MILLRACE_URL"):
        click.echo(f"note: MILLRACE_URL is set: commands without --context use {address}", err=True)


@click.command(cls=base.Command)
@base.pass_settings
def logout(settings: Settings) -> None:
    """Removes the token of the current context, or of --context."""
    config = _config()
    name = settings.context or config.current
    if name is None:
        raise errors.ConfigError("no current context: name one with --context")
    config.context(name)
    config.set(name, token=None)
    config.save()
    click.echo(f"removed the token of context {name}; it stays valid until it is revoked", err=True)


@click.group(cls=base.Group)
def config() -> None:
    """Shows and changes the contexts file."""


@config.command("get-contexts")
@base.output_option()
def get_contexts(output: str) -> None:
    """Lists the contexts."""
    stored = _config()
    document = {
        "current-context": stored.current,
        "contexts": {name: context.without_token() for name, context in stored.contexts.items()},
    }
    rows = [
        (
            "*" if name == stored.current else " ",
            name,
            each.url,
            each.namespace,
            "yes" if each.token else "no",
        )
        for name, each in stored.contexts.items()
    ]
    headers = ("CURRENT", "NAME", "URL", "NAMESPACE", "TOKEN")
    render.emit(output, document, lambda: render.table(headers, rows), "\n".join(stored.contexts))


@config.command("current-context")
def current_context() -> None:
    """Prints the name of the current context."""
    stored = _config()
    if stored.current is None:
        raise errors.ConfigError("no current context: create one with `millrace login URL`")
    click.echo(stored.current)


@config.command("use-context")
@_context_argument
def use_context(name: str) -> None:
    """Makes a context the current one."""
    stored = _config()
    stored.current = name
    stored.save()
    click.echo(f"current context: {name}", err=True)
    _warn_about_environment()


@config.command("set-context")
@_context_argument
@base.pass_settings
def set_context(settings: Settings, name: str) -> None:
    """Creates or changes a context, using the flags --url, --namespace, --ca and --token_file."""
    from millrace import endpoint

    stored = _config()
    changes = {
        "url": endpoint.normalize_url(settings.url) if settings.url else None,
        "namespace": settings.namespace,
        "ca": str(Path(settings.ca).resolve()) if settings.ca else None,
        "token": settings.token(),
    }
    stored.set(name, **{key: value for key, value in changes.items() if value is not None})
    if stored.current is None:
        stored.current = name
    stored.save()
    click.echo(f"saved context {name} in {stored.path}", err=True)


@config.command("delete-context")
@_context_argument
def delete_context(name: str) -> None:
    """Removes a context and its token."""
    stored = _config()
    stored.delete(name)
    stored.save()
    click.echo(f"removed context {name}", err=True)


@config.command("view")
@base.output_option("yaml", "json")
def view(output: str) -> None:
    """Prints the contexts file without tokens."""
    stored = _config()
    document = {
        "current-context": stored.current,
        "contexts": {name: context.without_token() for name, context in stored.contexts.items()},
    }
    render.emit(output, document, str)


@click.command(cls=base.Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Prints a shell script that completes commands, flags and names of jobs.

    \b
    bash    eval "$(millrace completion bash)"
    zsh     eval "$(millrace completion zsh)"
    fish    millrace completion fish | source
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        return Exit.BAD_INPUT
    click.echo(kind(context.find_root().command, {}, "millrace", "_MILLRACE_COMPLETE").source())
    return Exit.OK


COMMANDS = (login, logout, config, completion)


def _config() -> Config:
    from millrace.config import Config

    return Config()


def _token(settings: Settings) -> str:
    """Returns the token of --token_file or standard input; prompts for it without echo otherwise."""
    token = settings.token()
    if token is not None:
        return token
    if not sys.stdin.isatty():
        raise click.UsageError(
            "no terminal to prompt for the token: pass it on standard input (--token -) or with --token_file"
        )
    prompt = "Token (empty if the appliance requires none)"
    answer: str = click.prompt(prompt, default="", hide_input=True, show_default=False, err=True)
    return answer


def _name_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}-{parts.port}" if parts.port else str(parts.hostname)
