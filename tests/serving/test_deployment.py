"""The Dockerfile and the Kubernetes example, read rather than run: what they name must exist and fit together."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from click import Command

from softcue.cli.app import app as command_line
from softcue.serving.http.middleware import PROBES
from softcue.serving.http.routes import create_app
from softcue.serving.http.service import Service
from softcue.serving.settings import ServerSettings

ROOT = Path(__file__).parents[2]
DEADLINE = ServerSettings().deadline


@pytest.fixture(scope="module")
def serve() -> Command:
    return typer.main.get_group(command_line).commands["serve"]


@pytest.fixture(scope="module")
def routes() -> set[str]:
    def never(_: Any) -> Any:
        raise AssertionError

    return set(create_app(Service(ServerSettings(), never)).openapi()["paths"])


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """Instruction and the rest of it, comments and line ends gone."""
    text = re.sub(r"^#.*\n", "", (ROOT / "deploy/Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    return {
        document["kind"]: document
        for document in yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text("utf-8"))
    }


@pytest.fixture(scope="module")
def pod(objects: dict[str, Any]) -> Any:
    return objects["Deployment"]["spec"]["template"]["spec"]


def rest_of(instructions: list[tuple[str, str]], name: str) -> list[str]:
    return [rest for instruction, rest in instructions if instruction == name]


def parsed(serve: Command, words: Sequence[str]) -> dict[str, Any]:
    """What the command line makes of the words; unknown options and bad values are errors."""
    return serve.make_context("serve", list(words), resilient_parsing=False).params


def settings_of(instructions: list[tuple[str, str]]) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(rest_of(instructions, "ENV"))))


# --- the image ---


def test_the_command_of_the_image_is_one_of_ours(
    instructions: list[tuple[str, str]], serve: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    [entry] = map(json.loads, rest_of(instructions, "ENTRYPOINT"))  # a list: no shell keeps signals to itself
    assert entry[:2] == ["softcue", "serve"]
    monkeypatch.setenv("SOFTCUE_BACKBONE", settings_of(instructions)["SOFTCUE_BACKBONE"])
    options = parsed(serve, entry[2:])
    assert (options["backbone"], str(options["cues"]), options["host"]) == ("minilm", "/cues", "0.0.0.0")
    assert [str(options["port"])] == rest_of(instructions, "EXPOSE")
    [check] = rest_of(instructions, "HEALTHCHECK")
    assert f"http://127.0.0.1:{options['port']}/livez" in check


def test_the_image_is_made_of_files_that_are_sent_to_it(instructions: list[tuple[str, str]]) -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")]
    copied = [source for rest in rest_of(instructions, "COPY") for source in rest.split()[:-1]]
    assert sorted(copied) == sorted(kept)
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {project["readme"], *project["license-files"]} <= set(copied)


def test_the_image_installs_extras_that_exist_with_the_constraints(instructions: list[tuple[str, str]]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [extras] = [rest.split('"')[1] for rest in rest_of(instructions, "ARG") if rest.startswith("EXTRAS=")]
    assert set(extras.split(",")) <= set(project["optional-dependencies"]) and "serve" in extras
    installs = [rest for rest in rest_of(instructions, "RUN") if "pip install" in rest]
    assert all("constraints.txt" in rest for rest in installs)
    # an index of torch builds has torch alone: the other constraints must not be looked for there
    assert "TORCH_INDEX" in installs[0] and "$(grep '^torch==' constraints.txt)" in installs[0]
    constraints = (ROOT / "constraints.txt").read_text("utf-8")
    assert len(re.findall(r"^torch==[\d.]+$", constraints, flags=re.MULTILINE)) == 1
    [base] = rest_of(instructions, "FROM")
    assert base == f"python:{project['requires-python'].removeprefix('>=')}-slim"


def test_the_image_runs_as_a_user_that_owns_only_its_cache(instructions: list[tuple[str, str]], pod: Any) -> None:
    [user] = rest_of(instructions, "USER")
    assert user == "10001:10001"
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == user
    names = [name for name, _ in instructions]
    assert "RUN" not in names[names.index("USER") :]
    environment = settings_of(instructions)
    assert environment["SOFTCUE_CACHE_MB"] == "0"
    assert environment["SOFTCUE_HOME"] == "/cache" and environment["HF_HOME"].startswith("/cache/")


# --- Kubernetes ---


def test_arguments_of_the_container_are_options_of_the_command(
    instructions: list[tuple[str, str]], pod: Any, serve: Command
) -> None:
    [container] = pod["containers"]
    [entry] = map(json.loads, rest_of(instructions, "ENTRYPOINT"))
    given = {variable["name"]: variable for variable in container["env"]}
    options = parsed(serve, [*entry[2:], "--backbone", given["SOFTCUE_BACKBONE"]["value"], *container["args"]])
    assert options["deadline"] == DEADLINE
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert str(options["cues"]) in mounts and mounts[str(options["cues"])]["readOnly"]
    assert str(options["api_key_file"].parent) in mounts
    assert options["admin_key_file"] is None  # a change would reach one replica
    assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in pod["volumes"]}


def test_probes_ask_open_routes_of_the_port(pod: Any, routes: set[str], objects: dict[str, Any]) -> None:
    [container] = pod["containers"]
    [port] = container["ports"]
    wanted = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    for name, path in wanted.items():
        assert container[name]["httpGet"] == {"path": path, "port": port["name"]}
        assert path in routes and path in PROBES
    assert port["containerPort"] == 8000
    assert objects["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]


def test_replicas_have_time_to_answer_what_they_took(pod: Any) -> None:
    [container] = pod["containers"]
    [_, seconds] = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["terminationGracePeriodSeconds"] > int(seconds) + DEADLINE + 1


def test_containers_are_limited_and_cannot_write_to_their_root(pod: Any) -> None:
    [container] = pod["containers"]
    for kind in ("requests", "limits"):
        assert set(container["resources"][kind]) == {"cpu", "memory"}
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"]
    written = {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume} == written


def test_every_object_means_the_same_pods(objects: dict[str, Any]) -> None:
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert objects["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["Service"]["spec"]["selector"] == labels
    assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["PodDisruptionBudget"]["spec"]["minAvailable"] < objects["Deployment"]["spec"]["replicas"]


# --- GPUs, vLLM, KubeRay ---

MANIFESTS = ("kubernetes.yaml", "kubernetes-vllm.yaml", "kuberay.yaml")
SCHEMA = "1.35"  # of Kubernetes
# What the example uses of KubeRay's own objects: no package has their schema.
RAY_JOB = {"entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "rayClusterSpec"}
RAY_CLUSTER = {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
HEAD_GROUP = {"rayStartParams", "template"}
WORKER_GROUP = {"groupName", "replicas", "minReplicas", "maxReplicas", *HEAD_GROUP}


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((ROOT / "deploy" / name).read_text("utf-8")))


def ray_templates() -> list[Any]:
    cluster = documents("kuberay.yaml")[0]["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]


@pytest.mark.parametrize("name", MANIFESTS)
def test_objects_follow_the_schema_of_kubernetes(name: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    objects = [document for document in documents(name) if not document["apiVersion"].startswith("ray.io/")]
    if name == "kuberay.yaml":
        objects += [{"apiVersion": "v1", "kind": "Pod", **template} for template in ray_templates()]
    for document in objects:
        kubernetes_validate.validate(document, SCHEMA, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**objects[0], "spec": {"no such field": 1}}, SCHEMA, strict=True)


def test_the_ray_job_has_the_fields_of_kuberay() -> None:
    job = documents("kuberay.yaml")[0]
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob") and set(job["spec"]) == RAY_JOB
    cluster = job["spec"]["rayClusterSpec"]
    assert set(cluster) == RAY_CLUSTER and set(cluster["headGroupSpec"]) == HEAD_GROUP
    for group in cluster["workerGroupSpecs"]:
        assert set(group) == WORKER_GROUP and group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [requirement] = [name for name in project["optional-dependencies"]["ray"] if name.startswith("ray[")]
    assert cluster["rayVersion"].rpartition(".")[0] in requirement


def test_the_command_of_the_ray_job_is_one_of_ours(serve: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    job = documents("kuberay.yaml")[0]["spec"]
    monkeypatch.setenv("SOFTCUE_BACKBONE", "/model")
    entry = job["entrypoint"].split()
    assert entry[:2] == ["softcue", "serve"]
    options = parsed(serve, entry[2:])
    assert options["engine"] == "ray" and options["replicas"] <= options["max_replicas"]
    worker = ray_templates()[1]["spec"]["containers"][0]["resources"]["limits"]
    most = job["rayClusterSpec"]["workerGroupSpecs"][0]["maxReplicas"]
    assert options["max_replicas"] * options["replica_gpus"] <= most * int(worker["nvidia.com/gpu"])
    assert options["max_replicas"] * options["replica_cpus"] <= most * int(worker["cpu"])
    [head] = ray_templates()[0]["spec"]["containers"]
    assert options["port"] in {port["containerPort"] for port in head["ports"]}


def test_vllm_listens_inside_its_pod_only_and_has_the_key_of_softcue(
    instructions: list[tuple[str, str]], serve: Command
) -> None:
    containers = {
        container["name"]: container
        for container in documents("kubernetes-vllm.yaml")[0]["spec"]["template"]["spec"]["containers"]
    }
    softcue, vllm = containers["softcue"], containers["vllm"]
    [entry] = map(json.loads, rest_of(instructions, "ENTRYPOINT"))
    options = parsed(serve, [*entry[2:], "--backbone", "/model", *softcue["args"]])
    arguments = dict(word.removeprefix("--").partition("=")[::2] for word in vllm["args"])
    assert options["engine"] == "vllm"
    assert options["vllm_url"] == f"http://{arguments['host']}:{arguments['port']}" == "http://127.0.0.1:8100"
    assert "enable-prompt-embeds" in arguments and "ports" not in vllm
    keys = [
        next(entry["valueFrom"] for entry in container["env"] if entry["name"] == name)
        for container, name in ((softcue, "SOFTCUE_VLLM_KEY"), (vllm, "VLLM_API_KEY"))
    ]
    assert keys[0] == keys[1]
    mounts = [{mount["mountPath"] for mount in container["volumeMounts"]} for container in (softcue, vllm)]
    assert all("/model" in paths for paths in mounts)


def test_the_image_for_gpus_differs_in_torch_and_extras_only(instructions: list[tuple[str, str]]) -> None:
    lines = (ROOT / "deploy/Dockerfile.gpu").read_text("utf-8").splitlines()
    for name in ("COPY", "ENTRYPOINT", "USER", "FROM", "WORKDIR", "EXPOSE"):
        ours = [line.partition(" ")[2].strip() for line in lines if line.startswith(f"{name} ")]
        assert ours == rest_of(instructions, name), name


def test_options_named_in_the_guide_exist(serve: Command) -> None:
    text = (ROOT / "docs/deployment.md").read_text("utf-8")
    ours = re.sub(
        r"^(docker|kubectl|ray) .*$|`(docker|kubectl) [^`]*`|`--build-arg [^`]*`", "", text, flags=re.MULTILINE
    )
    options = {option for parameter in serve.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", ours)) <= options
    for link in re.findall(r"\]\((\.\./[^)]+)\)", text):
        assert (ROOT / "docs" / link).exists()
