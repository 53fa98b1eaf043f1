"""The `quire` command. Wiring only: each command's work is in the module of its name, imported when it is used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quire_launcher.layout import DEFAULT_PORT

if TYPE_CHECKING:
    from quire_launcher.options import UpOptions

app = typer.Typer(
    name="quire",
    help="Serve a language model on this machine: Envoy, gateway, tokenizer, scheduler and worker.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Port = Annotated[
    int, typer.Option(envvar="QUIRE_PORT", help="The clients' port; services take the ports after it.")
]

ModelPath = Annotated[str, typer.Option(help="smollm2, minilm, or a GGUF file or a folder with safetensors.")]

EmbeddingModel = Annotated[
    str | None,
    typer.Option(
        help="Serve this one too, with an engine of its own: minilm, or an encoder's or generative model's folder."
    ),
]


@app.command()
def up(
    model: ModelPath = "smollm2",
    served_model_name: Annotated[
        str | None, typer.Option(help="The name clients use; made from the model if unset.")
    ] = None,
    embedding_model: EmbeddingModel = None,
    port: Port = DEFAULT_PORT,
    host: Annotated[
        str, typer.Option(help="The address clients connect to; 0.0.0.0 for other machines too.")
    ] = "127.0.0.1",
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when ready; the suite stays in the background.")
    ] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="A worker without a model: a latency model instead.")
    ] = False,
    step_ms: Annotated[float, typer.Option(min=0, help="Milliseconds of each simulated step.")] = 0.0,
    device: Annotated[str | None, typer.Option(help="The worker's device: cpu, cuda, cuda:1.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file with a section of settings per process: gateway, worker, envoy, ..."),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error, for all services.")
    ] = None,
    start_timeout_s: Annotated[
        float, typer.Option(min=1, help="Give up when a process is not ready by then.")
    ] = 600.0,
    ready_descriptor: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Start the suite and keep it running; Ctrl-C stops it in order, a second one at once."""
    from quire_launcher.options import UpOptions, read_sections

    try:
        options = UpOptions(
            model=_absolute(model),
            embedding_model=None if embedding_model is None else _absolute(embedding_model),
            served_model_name=served_model_name,
            port=port,
            host=host,
            simulate=simulate,
            step_ms=step_ms,
            device=device,
            log_level=log_level,
            start_timeout_s=start_timeout_s,
            sections=read_sections(config),
        )
        _ = options.ports
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if detach:
        from quire_launcher.detach import start_detached

        raise typer.Exit(start_detached(options, _arguments(options, config)))
    from quire_launcher.up import run_suite

    raise typer.Exit(
        run_suite(options, show_services=ready_descriptor is None, ready_descriptor=ready_descriptor)
    )


@app.command()
def down(
    port: Port = DEFAULT_PORT,
    timeout_s: Annotated[
        float, typer.Option(min=0, help="Seconds to wait before everything is ended at once.")
    ] = 60.0,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for running requests.")] = False,
) -> None:
    """Stop the suite; requests that run may end first."""
    from quire_launcher.down import stop_suite

    raise typer.Exit(stop_suite(port, timeout_s=timeout_s, now=now))


@app.command()
def status(
    port: Port = DEFAULT_PORT,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Show the health of each process, and the scheduler's load. Exit status 1: not all healthy, 3: nothing runs."""
    from quire_launcher.status import show_status

    raise typer.Exit(show_status(port, as_json=as_json))


@app.command()
def logs(
    names: Annotated[
        list[str] | None, typer.Argument(help="Processes, for instance: worker envoy. All if left out.")
    ] = None,
    port: Port = DEFAULT_PORT,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="How many of the last lines of each.")
    ] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")
    ] = False,
) -> None:
    """Show the logs of the suite, also of one that has ended."""
    from quire_launcher.logs import show_logs

    raise typer.Exit(show_logs(port, names=names or [], lines=lines, follow=follow))


@app.command()
def chat(
    prompt: Annotated[
        str | None, typer.Argument(help="Answer this and return; converse if left out.")
    ] = None,
    port: Port = DEFAULT_PORT,
    url: Annotated[str | None, typer.Option(help="Another server's OpenAI base URL, ending in /v1.")] = None,
    model: Annotated[str | None, typer.Option(help="The model; the server's first one if left out.")] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 takes the likeliest token.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer in tokens.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="QUIRE_API_KEY", help="The key, where one is needed.")
    ] = None,
) -> None:
    """Talk to the model in the terminal."""
    from quire_launcher.chat import Chat, run_chat

    options = {"temperature": temperature, "max_completion_tokens": max_tokens}
    conversation = Chat(
        url=url or f"http://127.0.0.1:{port}/v1",
        model=model,
        system=system,
        api_key=api_key,
        options={name: value for name, value in options.items() if value is not None},
    )
    raise typer.Exit(run_chat(conversation, prompt))


@app.command()
def complete(
    prompt: Annotated[
        str | None, typer.Argument(help="What to go on from; standard input if left out.")
    ] = None,
    port: Port = DEFAULT_PORT,
    url: Annotated[str | None, typer.Option(help="Another server's OpenAI base URL, ending in /v1.")] = None,
    model: Annotated[str | None, typer.Option(help="The model; the server's first one if left out.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 takes the likeliest token.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest completion in tokens.")] = 256,
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends it; may be given again.")] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt first.")] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="QUIRE_API_KEY", help="The key, where one is needed.")
    ] = None,
) -> None:
    """Let the model go on from a text."""
    from quire_launcher.chat import Chat
    from quire_launcher.complete import run_complete

    options = {"temperature": temperature, "max_tokens": max_tokens, "stop": stop or None}
    server = Chat(url=url or f"http://127.0.0.1:{port}/v1", model=model, api_key=api_key)
    wanted = {name: value for name, value in options.items() if value is not None}
    raise typer.Exit(run_complete(server, prompt, wanted, with_prompt=echo))


@app.command()
def embed(
    texts: Annotated[list[str] | None, typer.Argument(help="The texts; or give --file.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A text a line; - for standard input.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write there, with a progress bar.")
    ] = None,
    port: Port = DEFAULT_PORT,
    url: Annotated[str | None, typer.Option(help="Another server's OpenAI base URL, ending in /v1.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The model; the first one that makes embeddings if left out.")
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Values of each embedding; all if left out.")
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts that are too long instead of refusing them.")
    ] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="QUIRE_API_KEY", help="The key, where one is needed.")
    ] = None,
) -> None:
    """Embed texts: one JSON object a line, with index, text and embedding."""
    from quire_launcher.embed import Embedder, run_embed

    address = url or f"http://127.0.0.1:{port}/v1"
    embedder = Embedder(address, model=model, dimensions=dimensions, api_key=api_key, truncate=truncate)
    raise typer.Exit(run_embed(embedder, texts or [], file, output))


@app.command()
def batch(
    file: Annotated[
        Path | None, typer.Argument(help="JSON lines: custom_id, method, url and body of each request.")
    ] = None,
    batch_id: Annotated[
        str | None, typer.Option("--id", help="Follow a job that was started before.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where answers go; FILE.output.jsonl if left out.")
    ] = None,
    errors: Annotated[
        Path | None, typer.Option(help="Where failed requests go; FILE.errors.jsonl if left out.")
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="With --id: end the job.")] = False,
    port: Port = DEFAULT_PORT,
    url: Annotated[str | None, typer.Option(help="Another server's OpenAI base URL, ending in /v1.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="QUIRE_API_KEY", help="The key, where one is needed.")
    ] = None,
) -> None:
    """Run a file of requests as a batch job and fetch the answers. Ctrl-C leaves the job running."""
    from quire_launcher.batch import BatchClient, run_batch

    if (file is None) == (batch_id is None):
        raise typer.BadParameter("give a file, or --id of a job")
    if cancel and batch_id is None:
        raise typer.BadParameter("--cancel needs --id")
    client = BatchClient(url or f"http://127.0.0.1:{port}/v1", api_key)
    raise typer.Exit(run_batch(client, file, batch_id, output=output, errors=errors, cancel=cancel))


def _absolute(model: str) -> str:
    """A path made absolute; an alias as it is."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else model


def _arguments(options: UpOptions, config: Path | None) -> list[str]:
    """The command line of the launcher in the background: this one's, without --detach and with absolute paths."""
    flags = ["up", "--model", options.model, "--port", str(options.port), "--host", options.host]
    flags += ["--step-ms", str(options.step_ms), "--start-timeout-s", str(options.start_timeout_s)]
    if options.simulate:
        flags.append("--simulate")
    for name, value in (
        ("--served-model-name", options.served_model_name),
        ("--embedding-model", options.embedding_model),
        ("--device", options.device),
        ("--log-level", options.log_level),
        ("--config", str(config.resolve()) if config else None),
    ):
        if value is not None:
            flags += [name, value]
    return flags


def main() -> None:
    """Run the command."""
    sys.exit(app())


if __name__ == "__main__":
    main()
