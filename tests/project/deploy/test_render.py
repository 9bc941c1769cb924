"""Manifests fit the product, Kubernetes' schemas, and what was committed; none has a secret."""

from __future__ import annotations

import copy
import json
import re
import runpy
import shlex
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import click
import jsonschema
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parsed

from paimon_features.cli import cli
from paimon_features.core.configuration.kafka_settings import KafkaSettings
from paimon_features.core.configuration.project_config import read_config
from paimon_features.online.materialize.monitor import Monitor
from paimon_features.online.materialize.monitor_server import MonitorServer
from paimon_features.online.store import OnlineSettings
from paimon_features.serving.http.definitions.definition_source import stamp_of
from paimon_features.serving.http.endpoints.admin_pages import AdminPages
from paimon_features.serving.http.metrics import Counts, page
from paimon_features.serving.http.server.supervisor import GRACE_S
from paimon_features.serving.request_log.log import salt_of_environment
from tests.project.deploy.projects import (
    BASE,
    BASE_OPTIONS,
    FULL_OPTIONS,
    ROOT,
    base_project,
    full_project,
    render,
)

DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
SCHEMAS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "kubernetes_schemas.json").read_text()
)
Json = dict[str, Any]


@pytest.fixture(scope="module")
def base_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(base_project(tmp_path_factory.mktemp("base")), *BASE_OPTIONS)


@pytest.fixture(scope="module")
def full_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(full_project(tmp_path_factory.mktemp("full")), *FULL_OPTIONS)


@pytest.fixture(scope="module")
def documents(base_text: str, full_text: str) -> list[Json]:
    """All objects of both projects."""
    return [*yaml.safe_load_all(base_text), *yaml.safe_load_all(full_text)]


def of_kind(documents: list[Json], kind: str) -> list[Json]:
    found = [each for each in documents if each["kind"] == kind]
    assert found, kind
    return found


def pod_templates(documents: list[Json]) -> Iterator[Json]:
    """The pod of every object that has one."""
    for each in documents:
        spec = each.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        template = spec.get("template") or spec.get("podTemplate")
        if template is not None:
            yield template


def all_containers(template: Json) -> list[Json]:
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def containers(documents: list[Json]) -> Iterator[tuple[Json, Json]]:
    for template in pod_templates(documents):
        for container in all_containers(template):
            yield template, container


# -- schemas --------------------------------------------------------------------------------------


def wrong_fields(document: Json) -> list[str]:
    """What the strict schema of an object of Kubernetes says."""
    schema = SCHEMAS[f"{document['apiVersion']}/{document['kind']}"]
    errors = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in errors]


def test_every_document_has_only_fields_of_kubernetes(documents: list[Json]) -> None:
    core = [each for each in documents if each["kind"] != "FlinkDeployment"]
    assert len(core) > 25
    for document in core:
        assert wrong_fields(document) == [], document["metadata"]["name"]


def test_an_unknown_or_mistyped_field_would_be_found(documents: list[Json]) -> None:
    server = copy.deepcopy(of_kind(documents, "Deployment")[0])
    server["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    server["spec"]["selector"]["matchLabels"] = ["server"]
    found = "\n".join(wrong_fields(server))
    assert "readynessProbe" in found
    assert "is not of type 'object'" in found


JOB_FIELDS = {"jarURI", "entryClass", "args", "parallelism", "upgradeMode", "state"}
SESSION_FIELDS = {"resource", "replicas"}
FLINK_FIELDS = {
    *("image", "imagePullPolicy", "flinkVersion", "serviceAccount", "flinkConfiguration"),
    *("podTemplate", "jobManager", "taskManager"),
}


def flink_jobs(documents: list[Json]) -> list[Json]:
    """The FlinkDeployments in application mode."""
    return [each for each in of_kind(documents, "FlinkDeployment") if "job" in each["spec"]]


def test_flink_deployments_have_the_fields_of_the_operator(documents: list[Json]) -> None:
    assert len(of_kind(documents, "FlinkDeployment")) == len(flink_jobs(documents)) + 1
    pods = jsonschema.Draft202012Validator(SCHEMAS["v1/PodTemplateSpec"])
    for document in of_kind(documents, "FlinkDeployment"):
        assert document["apiVersion"] == "flink.apache.org/v1beta1"
        spec = document["spec"]
        assert spec.keys() - {"job"} == FLINK_FIELDS
        if "job" in spec:
            assert spec["job"].keys() == JOB_FIELDS
        assert all(isinstance(value, str) for value in spec["flinkConfiguration"].values())
        token = {"spec": {"automountServiceAccountToken": False}}
        assert spec["taskManager"]["podTemplate"] == token
        assert spec["jobManager"].keys() == ({"resource"} if "job" in spec else SESSION_FIELDS)
        for manager in (spec["jobManager"], spec["taskManager"]):
            assert re.fullmatch(r"\d+m", manager["resource"]["memory"])
            assert isinstance(manager["resource"]["cpu"], int | float)
        assert list(pods.iter_errors(spec["podTemplate"])) == []
        # the limit of the operator; longer names fail when its services are made
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,43}[a-z0-9])?", document["metadata"]["name"])


# -- the same as what is committed ----------------------------------------------------------------


def test_the_committed_base_is_what_is_rendered_now(tmp_path: Path) -> None:
    render(base_project(tmp_path), *BASE_OPTIONS, "--into", str(tmp_path / "out"))
    names = sorted(path.name for path in BASE.iterdir())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    for name in names:
        assert (tmp_path / "out" / name).read_text() == (BASE / name).read_text(), (
            f"{name} has changed: python -m tests.project.deploy.projects FOLDER renders it again"
        )


def test_the_same_project_results_in_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir(), second.mkdir()
    texts = {render(full_project(folder), *FULL_OPTIONS) for folder in (first, second)}
    assert len(texts) == 1


def test_json_has_the_same_objects(tmp_path: Path) -> None:
    project = base_project(tmp_path)
    as_json = json.loads(render(project, *BASE_OPTIONS, "--json"))
    assert as_json["kind"] == "List"
    assert as_json["items"] == list(yaml.safe_load_all(render(project, *BASE_OPTIONS)))


def test_kustomize_lists_every_file_and_the_overlay_patches_what_there_is() -> None:
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    others = {path.name for path in BASE.iterdir()} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == others
    there = {
        (each["kind"], each["metadata"]["name"])
        for name in others
        for each in yaml.safe_load_all((BASE / name).read_text())
    }
    overlay = yaml.safe_load((BASE.parent / "overlays/example/kustomization.yaml").read_text())
    targets = [(patch["target"]["kind"], patch["target"]["name"]) for patch in overlay["patches"]]
    assert targets
    assert set(targets) <= there


# -- commands, ports, paths, metrics --------------------------------------------------------------


def parse(arguments: list[str]) -> dict[str, Any]:
    """Parse a command line as the product does; returns the values of the last command."""
    context = click.Context(cli)
    name, command, rest = cli.resolve_command(context, arguments)
    assert command is not None
    with command.make_context(name, rest, parent=context) as inner:
        return context.params | inner.params


def test_every_command_parses(documents: list[Json]) -> None:
    seen = set()
    for template, container in containers(documents):
        if container["name"] == "flink-main-container":
            continue
        variables = {one["name"] for one in container["env"]}
        arguments = list(container["args"])
        for name in variables:
            arguments = [argument.replace(f"$({name})", "0") for argument in arguments]
        assert not any("$(" in argument for argument in arguments)
        values = parse(arguments)
        assert values["path"] == "/project"
        seen.add(arguments[0])
        if arguments[0] == "serve":
            assert (values["host"], values["port"]) == ("0.0.0.0", 8080)
            assert container["ports"] == [{"name": "http", "containerPort": values["port"]}]
        if arguments[0] == "materialize":
            assert (values["follow"], values["listen"]) == (True, "0.0.0.0:9464")
            assert container["ports"] == [{"name": "http", "containerPort": 9464}]
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    assert seen == {"serve", "materialize", "apply", "maintain", "check", "request-log"}
    with pytest.raises(click.NoSuchOption):
        parse(["serve", "--open-to-all"])


def test_every_shard_has_a_pod(documents: list[Json]) -> None:
    for workload, count in zip(of_kind(documents, "StatefulSet"), (2, 4), strict=True):
        assert workload["spec"]["replicas"] == count
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        arguments = container["args"]
        assert arguments[arguments.index("--shard") + 1] == f"$(SHARD)/{count}"
        (index,) = (one for one in container["env"] if one["name"] == "SHARD")
        path = index["valueFrom"]["fieldRef"]["fieldPath"]
        assert path == "metadata.labels['apps.kubernetes.io/pod-index']"


def status_of(address: str, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=120) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_probes_request_paths_that_there_are(documents: list[Json]) -> None:
    pages = AdminPages(None, list, None)  # type: ignore[arg-type]
    pages.close()
    with MonitorServer(Monitor(["spend"]), "127.0.0.1:0") as monitor:
        for _, container in containers(documents):
            probes = {name: value for name, value in container.items() if name.endswith("Probe")}
            if container["name"] not in ("server", "materializer"):
                assert not probes
                continue
            assert probes.keys() == {"startupProbe", "livenessProbe", "readinessProbe"}
            for name, probe in probes.items():
                path = probe["httpGet"]["path"]
                kind = "ready" if name == "readinessProbe" else "live"
                assert path.partition("?")[0] == f"/health/{kind}"
                assert probe["httpGet"]["port"] == "http"
                if container["name"] == "server":
                    assert pages.routes[path.partition("?")[0]][0] == "GET"
                else:
                    # nothing is caught up yet, and nothing hangs
                    expected = {"ready": 503, "live": 200}
                    assert status_of(monitor.address, path) == expected[kind]


def test_a_server_may_end_its_requests_before_it_is_killed(documents: list[Json]) -> None:
    for workload in of_kind(documents, "Deployment"):
        spec = workload["spec"]["template"]["spec"]
        (server,) = spec["containers"]
        pause_s = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
        assert spec["terminationGracePeriodSeconds"] > pause_s + GRACE_S


def test_servers_scale_by_a_metric_that_there_is(documents: list[Json]) -> None:
    counts = Counts()
    counts.written_s = 1.0
    reported = page([counts], 1.0, 0, True).decode()
    known = {sample.name for family in parsed(reported) for sample in family.samples}
    adapter = yaml.safe_load((BASE.parent / "prometheus-adapter.yaml").read_text())
    (rule,) = adapter["rules"]["custom"]
    for scaler, in_flight in zip(
        of_kind(documents, "HorizontalPodAutoscaler"), ("16", "8"), strict=True
    ):
        (metric,) = scaler["spec"]["metrics"]
        name = metric["pods"]["metric"]["name"]
        assert name in known
        assert rule["seriesQuery"].startswith(f"{name}{{")
        assert rule["name"]["matches"] == name
        assert metric["pods"]["target"]["averageValue"] == in_flight


def test_scraped_ports_are_those_of_the_containers(documents: list[Json]) -> None:
    count = 0
    for template, container in containers(documents):
        annotations = template["metadata"].get("annotations")
        if annotations is None or container["name"] == "request-log":
            continue
        ports = [port["containerPort"] for port in container["ports"]]
        assert [int(annotations["prometheus.io/port"])] == ports
        assert annotations["prometheus.io/path"] == "/metrics"
        count += 1
    assert count >= 8


# -- images and their files -----------------------------------------------------------------------


def stages() -> dict[str, str]:
    parts = re.split(r"(?m)^FROM \S+ AS (\w+)$", DOCKERFILE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_images_are_those_of_the_dockerfile(documents: list[Json]) -> None:
    targets = re.findall(r"(?m)^#   (\w+) {2,}\S", DOCKERFILE)
    assert {"serving", "materializer", "jobs"} <= set(targets) & stages().keys()
    images = [container["image"] for _, container in containers(documents) if "image" in container]
    images += [each["spec"]["image"] for each in of_kind(documents, "FlinkDeployment")]
    for image in images:
        name, _, digest = image.partition("@")
        assert bool(digest) == (name == "registry.example.com/ml/paimon-features-jobs:1.2.3")
        found = re.fullmatch(r"(registry\.example\.com/ml/)?paimon-features-(\w+):[\w.]+", name)
        assert found is not None, image
        assert found[2] in stages()


def in_jobs_image(path: str) -> Path:
    """The file of this repository that the image ``jobs`` has at ``path``."""
    copied = re.findall(r"(?m)^COPY (?!--)(.+) (\S+)$", stages()["jobs"])
    for sources, target in copied:
        for source in sources.split():
            name = PurePosixPath(source).name
            place = PurePosixPath(target)
            # a folder is copied to the target, a file into it if it ends with a slash
            if (ROOT / source).is_dir() and PurePosixPath(path).is_relative_to(place):
                return ROOT / source / PurePosixPath(path).relative_to(place)
            if path == (f"{place}/{name}" if target.endswith("/") else target):
                return ROOT / source
    raise AssertionError(f"docker/Dockerfile copies nothing to {path}")


def test_programs_and_entry_point_are_in_the_image(documents: list[Json]) -> None:
    programs = set()
    for document in flink_jobs(documents):
        spec = document["spec"]
        entry = in_jobs_image(spec["flinkConfiguration"]["kubernetes.entry.path"])
        assert entry.stat().st_mode & 0o111 == 0o111
        flag, path, *arguments = spec["job"]["args"]
        assert flag == "-py"
        file = in_jobs_image(path)
        # the program's own parser knows every option
        parsed_arguments = runpy.run_path(str(file))["parser"]().parse_args(arguments)
        assert parsed_arguments.project == "/project"
        programs.add(file.stem)
        jar = PurePosixPath(spec["job"]["jarURI"].removeprefix("local://"))
        assert re.search(rf"ln -s [^&]*\s{re.escape(str(jar))}$", stages()["jobs"], re.M)
        assert f"install -d {'/opt/flink/conf'} {jar.parent}" in stages()["jobs"]
    assert programs == {"tiles", "ingest", "iterate"}


def test_checkpoints_are_where_the_project_has_them(base_text: str, full_text: str) -> None:
    def options(text: str) -> list[Json]:
        found = yaml.safe_load_all(text)
        return [d["spec"]["flinkConfiguration"] for d in found if d["kind"] == "FlinkDeployment"]

    for each in options(base_text):
        assert each["execution.checkpointing.dir"].startswith("file:///")
        assert not any(name.startswith("s3.") for name in each)
    for each in options(full_text):
        assert each["execution.checkpointing.dir"] == "s3://lake/jobs/checkpoints"
        assert each["execution.checkpointing.savepoint-dir"] == "s3://lake/jobs/savepoints"
        assert each["s3.endpoint"] == "https://s3.example.com"
        assert "key" not in " ".join(each)


def test_an_iteration_has_one_task_manager_whose_memory_carries_its_feedback(
    documents: list[Json],
) -> None:
    (spec,) = (
        each["spec"]
        for each in of_kind(documents, "FlinkDeployment")
        if each["metadata"]["name"] == "big-shop-iterate-train"
    )
    slots = int(spec["flinkConfiguration"]["taskmanager.numberOfTaskSlots"])
    assert slots == spec["job"]["parallelism"] == 8
    assert shlex.join(spec["job"]["args"][2:]) == (
        "/project/train.py:build --mode thread --wire memory --project /project"
    )


def test_job_managers_of_a_session_may_elect_their_leader_and_share_a_folder(
    documents: list[Json], tmp_path: Path
) -> None:
    (session,) = (d for d in of_kind(documents, "FlinkDeployment") if "job" not in d["spec"])
    spec = session["spec"]
    assert spec["jobManager"]["replicas"] == 2
    assert spec["flinkConfiguration"]["high-availability.type"] == "kubernetes"
    assert spec["flinkConfiguration"]["high-availability.storageDir"] == "s3://lake/jobs/ha"
    # in application mode the program decides from which checkpoint a job resumes
    for job in flink_jobs(documents):
        assert not any(name.startswith("high-av") for name in job["spec"]["flinkConfiguration"])
    (role,), (binding,) = (of_kind(documents, kind) for kind in ("Role", "RoleBinding"))
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [one["name"] for one in binding["subjects"]] == [spec["serviceAccount"]]
    (rule,) = role["rules"]
    assert rule["resources"] == ["configmaps"]
    (policy,) = (
        d for d in of_kind(documents, "NetworkPolicy")
        if d["metadata"]["name"] == "big-shop-flink"
    )  # fmt: skip
    (expression,) = policy["spec"]["podSelector"]["matchExpressions"]
    assert (
        spec["podTemplate"]["metadata"]["labels"]["app.kubernetes.io/component"]
        in (expression["values"])
    )
    folder = render(base_project(tmp_path), *BASE_OPTIONS, "--session")
    assert 'high-availability.storageDir: "file:///project/.paimon-features/ha"' in folder


def targets(documents: list[Json], rules: list[Json]) -> list[dict[str, str]]:
    """What Prometheus makes of each port of each pod, by its rules of relabelling."""
    found = []
    for template in pod_templates(documents):
        about = template["metadata"]
        pod = {f"label_{name}": value for name, value in about["labels"].items()}
        pod |= {f"annotation_{name}": v for name, v in about.get("annotations", {}).items()}
        pod = {re.sub(r"\W", "_", f"__meta_kubernetes_pod_{k}"): v for k, v in pod.items()}
        containers = template["spec"]["containers"]
        for port in [port for each in containers for port in each.get("ports", [])]:
            labels = pod | {
                "__meta_kubernetes_pod_container_port_number": str(port["containerPort"]),
                "__meta_kubernetes_namespace": "shop",
                "__meta_kubernetes_pod_name": "pod",
            }
            if all(relabelled(labels, rule) for rule in rules):
                found.append(labels)
    return found


def relabelled(labels: dict[str, str], rule: Json) -> bool:
    """Apply a rule; False if it drops the target."""
    text = ";".join(labels.get(name, "") for name in rule["source_labels"])
    action = rule.get("action", "replace")
    if action == "keepequal":
        return text == labels.get(rule["target_label"], "")
    matches = re.fullmatch(rule.get("regex", "(.*)"), text) is not None
    if action == "keep":
        return matches
    assert action == "replace"
    if matches:
        labels[rule["target_label"]] = rule.get("replacement", text)
    return True


def test_prometheus_finds_each_pod_under_the_job_that_the_alerts_name(
    documents: list[Json],
) -> None:
    settings = yaml.safe_load((BASE.parent / "prometheus.yml").read_text())
    (scraped,) = settings["scrape_configs"]
    found = targets(documents, scraped["relabel_configs"])
    annotated = [
        each for each in pod_templates(documents) if "annotations" in each["metadata"]
    ]  # fmt: skip
    assert len(found) == len(annotated) >= 10
    alerts = (ROOT / "docker" / "alerts.yml").read_text()
    assert {"feature-server", "materializer"} == set(re.findall(r'job="([\w-]+)"', alerts))
    assert {labels["job"] for labels in found} == {"feature-server", "materializer", "flink"}
    assert {labels["project"] for labels in found} == {"shop", "big-shop"}
    for each in of_kind(documents, "FlinkDeployment"):
        options = each["spec"]["flinkConfiguration"]
        port = each["spec"]["podTemplate"]["metadata"]["annotations"]["prometheus.io/port"]
        assert options["metrics.reporters"] == "prom"
        assert options["metrics.reporter.prom.port"] == port


# -- files, volumes, secrets ----------------------------------------------------------------------


def test_every_mount_has_its_volume_and_every_file_its_entry(documents: list[Json]) -> None:
    maps = {each["metadata"]["name"]: each["data"] for each in of_kind(documents, "ConfigMap")}
    for template, container in containers(documents):
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        assert len(volumes) == len(template["spec"]["volumes"])
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted <= volumes.keys()
        if len(all_containers(template)) == 1:
            assert mounted == volumes.keys()
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert len(set(paths)) == len(paths)
        for mount in container["volumeMounts"]:
            if mount["name"] == "project":
                data = maps[volumes["project"]["configMap"]["name"]]
                assert mount["subPath"] in data
        assert "/tmp" in paths, "the root file system is read-only"


def test_containers_have_no_rights(documents: list[Json]) -> None:
    user = re.search(r"useradd --uid (\d+)", DOCKERFILE)
    assert user is not None
    for template, container in containers(documents):
        pod = template["spec"]["securityContext"]
        assert (pod["runAsUser"], pod["runAsNonRoot"]) == (int(user[1]), True)
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_secrets_are_referred_to_by_name(full_text: str, base_text: str) -> None:
    full = list(yaml.safe_load_all(full_text))
    names = set()
    for template, container in containers(full):
        for variable in container["env"]:
            assert variable.keys() <= {"name", "value", "valueFrom"}
            if variable.get("value", "").startswith("/secrets/"):
                continue  # the path of a file
            if re.search("PASSWORD|URL|SECRET|TOKEN|KEY|SALT", variable["name"]):
                names.add(variable["valueFrom"]["secretKeyRef"]["name"])
        names |= {one["secretRef"]["name"] for one in container.get("envFrom", [])}
        names |= {
            volume["secret"]["secretName"]
            for volume in template["spec"]["volumes"]
            if "secret" in volume
        }
    assert names == {"valkey", "valkey-tls", "server-tokens", "s3", "kafka", "salt"}
    for text in (full_text, base_text):
        assert "kind: Secret" not in text


def test_only_what_needs_it_may_be_reached(documents: list[Json]) -> None:
    policies = of_kind(documents, "NetworkPolicy")
    default = next(each for each in policies if each["metadata"]["name"] == "shop-default")
    assert default["spec"]["ingress"] == []
    flink = next(each for each in policies if each["metadata"]["name"] == "shop-flink")
    first, *others = flink["spec"]["ingress"]
    assert first == {"from": [{"podSelector": flink["spec"]["podSelector"]}]}
    assert {port["port"] for rule in others for port in rule["ports"]} == {8081, 9249}
    labels = [template["metadata"]["labels"] for template in pod_templates(documents)]
    components = {each["app.kubernetes.io/component"] for each in labels}
    values = flink["spec"]["podSelector"]["matchExpressions"][0]["values"]
    assert set(values) <= components


# -- a pod, with real files -----------------------------------------------------------------------

SECRET_ENTRIES = {
    "server-tokens": {"tokens.toml": ""},
    "valkey": {
        "url": "rediss+sentinel://v:26379/main/0", "password": "a", "sentinel-password": "b",
    },
    "valkey-tls": {"ca.crt": "ca"},
    "kafka": {"password": "c", "ca.crt": "ca", "tls.crt": "crt", "tls.key": "key"},
    "salt": {"salt": "s" * 32},
    "s3": {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"},
}  # fmt: skip


def write_volume(folder: Path, entries: dict[str, str], version: str) -> None:
    """Write files as the kubelet does: links to a folder of this version, which it replaces."""
    (folder / version).mkdir(parents=True)
    for name, text in entries.items():
        (folder / version / name).write_text(text)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..data_tmp").symlink_to(version)
    previous = (folder / "..data").resolve() if (folder / "..data").exists() else None
    (folder / "..data_tmp").replace(folder / "..data")
    if previous is not None:
        shutil.rmtree(previous)


class Pod:
    """The files and variables of a container, below a folder: ``/`` is ``root``."""

    def __init__(self, root: Path, documents: list[Json], name: str) -> None:
        self.root = root
        maps = {d["metadata"]["name"]: d["data"] for d in documents if d["kind"] == "ConfigMap"}
        template, container = next(
            (t, c) for t, c in containers(documents)
            if c["name"] == name or t["metadata"]["labels"]["app.kubernetes.io/component"] == name
        )  # fmt: skip
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        self.writable = set()
        for mount in container["volumeMounts"]:
            volume, path = volumes[mount["name"]], self.path(mount["mountPath"])
            if "configMap" in volume:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(maps[volume["configMap"]["name"]][mount["subPath"]])
            elif "secret" in volume:
                assert "subPath" not in mount, "a file of its own is never updated"
                write_volume(path, SECRET_ENTRIES[volume["secret"]["secretName"]], "..1")
            else:
                path.mkdir(parents=True, exist_ok=True)
                self.writable.add(mount["mountPath"])
        self.variables = {v["name"]: self._value(v) for v in container["env"]}
        for secret in container.get("envFrom", []):
            self.variables |= SECRET_ENTRIES[secret["secretRef"]["name"]]

    def path(self, mounted: str) -> Path:
        return self.root / mounted.lstrip("/")

    def _value(self, variable: Json) -> str:
        if "value" in variable:
            value: str = variable["value"]
            return str(self.path(value)) if value.startswith("/secrets/") else value
        reference = variable["valueFrom"].get("secretKeyRef")
        return "0" if reference is None else SECRET_ENTRIES[reference["name"]][reference["key"]]

    def is_writable(self, path: Path) -> bool:
        place = PurePosixPath("/") / path.relative_to(self.root)
        return any(place.is_relative_to(folder) for folder in self.writable)


@pytest.fixture
def in_pod(tmp_path: Path, full_text: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    documents = list(yaml.safe_load_all(full_text))

    def enter(name: str) -> Pod:
        pod = Pod(tmp_path / "root", documents, name)
        for variable, value in pod.variables.items():
            monkeypatch.setenv(variable, value)
        return pod

    return enter


def test_a_server_pod_has_each_file_and_secret_that_its_settings_need(in_pod: Any) -> None:
    pod = in_pod("server")
    config = read_config(pod.path("/project"))
    assert config.serve.tokens.read_text() == ""
    online = OnlineSettings.of(config.online, root=config.root)
    assert (online.password, online.sentinel_password, online.tls_ca.read_text()) == (
        "a",
        "b",
        "ca",
    )
    assert salt_of_environment() == b"s" * 32
    for folder in (config.serve.audit, config.serve.request_log):
        assert pod.is_writable(folder)
    assert "/var/logs/predictions" in pod.writable
    assert "/var/state" not in pod.writable, "a server has no lake"


def test_the_files_of_a_secret_are_replaced_in_a_running_pod(in_pod: Any) -> None:
    pod = in_pod("server")
    config = read_config(pod.path("/project"))
    online = OnlineSettings.of(config.online, root=config.root)
    before = stamp_of(config.serve.tokens)
    write_volume(pod.path("/secrets/tokens"), {"tokens.toml": "# no token any more"}, "..2")
    write_volume(pod.path("/secrets/online-tls"), {"ca.crt": "new"}, "..2")
    assert config.serve.tokens.read_text() == "# no token any more"
    assert stamp_of(config.serve.tokens) != before
    assert online.tls_ca.read_text() == "new"


@pytest.mark.parametrize(
    ("name", "needs"),
    [("ingest", "kafka"), ("materializer", "online"), ("apply", "online"), ("request-log", "log")],
)
def test_other_pods_have_what_they_connect_with(in_pod: Any, name: str, needs: str) -> None:
    pod = in_pod(name)
    config = read_config(pod.path("/project"))
    assert pod.variables["AWS_ACCESS_KEY_ID"] == "id"
    assert {"/var/state", "/var/side"} <= pod.writable
    if needs == "kafka":
        kafka = KafkaSettings.of(config.kafka, config.root)
        assert (kafka.password, kafka.tls_key.read_text()) == ("c", "key")
        write_volume(pod.path("/secrets/kafka-tls"), {"ca.crt": "new"}, "..2")
        assert kafka.tls_ca.read_text() == "new"
    elif needs == "online":
        online = OnlineSettings.of(config.online, root=config.root)
        assert (online.password, online.sentinel_password) == ("a", "b")
    else:
        assert pod.is_writable(config.serve.request_log)


def test_servers_of_models_run_the_image_that_predicts(full_text: str, base_text: str) -> None:
    for text, image in ((full_text, "predict"), (base_text, "serving")):
        (server,) = of_kind(list(yaml.safe_load_all(text)), "Deployment")
        (container,) = server["spec"]["template"]["spec"]["containers"]
        assert f"paimon-features-{image}:" in container["image"]
