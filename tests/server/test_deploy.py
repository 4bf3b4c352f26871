"""The Dockerfile and the Kubernetes files: linted, and their flags are ones that the server has."""

import re
import subprocess

import pytest
import yaml
from packager_server import flags

from tests.conftest import ROOT

DEPLOY = ROOT / "server" / "deploy"
PROGRAMS = ROOT / ".venv-clients" / "bin"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
ROUTES = ("/healthz", "/readyz")


def needs_programs(test):
    missing = pytest.mark.skipif(not PROGRAMS.is_dir(), reason="make setup-clients was not run")
    return pytest.mark.clients(missing(test))


def documents(path):
    return {one["kind"]: one for one in yaml.safe_load_all(path.read_text())}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_ports_selectors_and_probes_fit_together(path):
    found = documents(path)
    assert set(found) == {"Deployment", "Service", "HorizontalPodAutoscaler"}
    template = found["Deployment"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert found["Service"]["spec"]["selector"].items() <= labels.items()
    target = found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"]
    assert target == found["Deployment"]["metadata"]["name"]
    (container,) = template["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"grpc": 8500, "http": 8501}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        (probe,) = [
            container[name][kind]
            for kind in container[name]
            if isinstance(container[name][kind], dict)
        ]
        assert probe.get("path", ROUTES[0]) in ROUTES
        assert probe["port"] in (*ports, *ports.values())


def test_the_flags_exist_and_the_grace_is_long_enough():
    pod = documents(DEPLOY / "kubernetes" / "packager-server.yaml")["Deployment"]["spec"][
        "template"
    ]["spec"]
    arguments = flags.parser().parse_args(pod["containers"][0]["args"])
    assert arguments.model_base_path == "/models/digits"
    needed = arguments.drain_seconds + arguments.grace_seconds
    assert pod["terminationGracePeriodSeconds"] > needed


def test_the_containers_entry_point_is_the_server():
    text = (DEPLOY / "Dockerfile").read_text()
    entry = re.search(r"^ENTRYPOINT \[(.*)\]$", text, re.M)[1].replace('"', "").split(", ")
    assert entry[:3] == ["python", "-m", "packager_server"]
    command = re.search(r"^CMD \[(.*)\]$", text, re.M)[1].replace('"', "").split(", ")
    assert flags.parser().parse_args([*entry[3:], *command]).host == "0.0.0.0"
    assert re.search(r"^USER \d+$", text, re.M)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
@needs_programs
def test_kubernetes_schema(path):
    run_program("kubernetes-validate", "--strict", "--quiet", path)


@needs_programs
def test_dockerfile_lint():
    run_program("hadolint", DEPLOY / "Dockerfile")


def run_program(name, *arguments):
    done = subprocess.run(
        [PROGRAMS / name, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


# ------------------------------------------------------------------ the variables of a service


def parsed(environment, *arguments):
    return flags.parser().parse_args([*flags.environment_flags(environment), *arguments])


def test_the_variables_of_a_managed_service():
    environment = {"AIP_HTTP_PORT": "8080", "AIP_STORAGE_URI": "gs://bucket/model/"}
    found = parsed(environment)
    assert (found.rest_api_port, found.host) == (8080, "0.0.0.0")
    assert found.model_base_path == "gs://bucket/model"
    assert parsed(environment, "--rest_api_port=9000").rest_api_port == 9000


def test_without_them_the_server_stays_on_this_machine():
    found = parsed({})
    assert (found.host, found.port, found.rest_api_port) == ("127.0.0.1", 8500, 8501)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("--enable_batching", True),
        ("--enable_batching=true", True),
        ("--enable_batching=false", False),
    ],
)
def test_booleans_as_tensorflow_serving_takes_them(text, value):
    assert parsed({}, text).enable_batching is value
