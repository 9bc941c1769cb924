"""Check Kubernetes manifests against the real schemas: ``make manifests`` runs it.

It needs Go, and installs with it, into a folder of its own, what it runs (some minutes, once):

- ``kustomize build`` of each folder that has a ``kustomization.yaml``;
- ``kubeconform -strict`` of the result: Kubernetes' OpenAPI document from the Go module
  k8s.io/kubernetes, and the operator's CustomResourceDefinition, whose file is named by --crd
  (``flinkdeployments.flink.apache.org-v1.yml`` of a release of the Flink Kubernetes Operator,
  1.13 or later: earlier ones do not know Flink 2.2).

Without folders it installs what it needs, and checks nothing.

Unknown fields are errors. Without --crd the FlinkDeployments are skipped, and counted as such.

    python tools/check_manifests.py --crd flinkdeployments.flink.apache.org-v1.yml FOLDER...

With --excerpt it writes the part of Kubernetes' schemas that the manifests use: the tests check
every rendered document against it, without Go and without a network.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from go_programs import CACHE, go, install

KUBERNETES = "k8s.io/kubernetes@v1.33.1"
TOOLS = {
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.6.7",
    "kustomize": "sigs.k8s.io/kustomize/kustomize/v5@v5.6.0",
}
PREFIX = "#/definitions/"
INT_OR_STRING = {"oneOf": [{"type": "string"}, {"type": "integer"}]}


def main() -> int:
    """Check the folders; the exit code is 1 if a manifest is wrong."""
    parser = argparse.ArgumentParser(description="Check Kubernetes manifests.")
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--crd", type=Path, help="The operator's CustomResourceDefinition.")
    parser.add_argument("--excerpt", type=Path, help="Write the schemas that are used to a file.")
    parser.add_argument("--work", type=Path, default=CACHE)
    args = parser.parse_args()
    work = args.work.absolute()
    tools = {name: install(name, module, work) for name, module in TOOLS.items()}
    schemas = work / "schemas"
    schemas.mkdir(parents=True, exist_ok=True)
    document = openapi(work)
    write_core_schemas(document, schemas)
    skipped: list[str] = ["-skip", "FlinkDeployment"]
    if args.crd is not None:
        write_crd_schema(args.crd, schemas)
        skipped = []
    location = f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    command = [str(tools["kubeconform"]), "-strict", "-summary", "-schema-location", location]
    right = []
    wrong = 0
    for folder in args.folders:
        built = subprocess.run(
            [str(tools["kustomize"]), "build", str(folder)], stdout=subprocess.PIPE, check=True
        )
        print(f"{folder}:", flush=True)
        if subprocess.run([*command, *skipped, "-"], input=built.stdout).returncode == 0:
            right.append(built.stdout)
        else:
            wrong += 1
    if args.excerpt is not None and not wrong:
        used: dict[str, Any] = {}
        for manifests in right:
            add_used(used, document["definitions"], manifests)
        args.excerpt.write_text(json.dumps(used, indent=1, sort_keys=True) + "\n")
    return 1 if wrong else 0


def openapi(work: Path) -> dict[str, Any]:
    """Kubernetes' OpenAPI document."""
    work.mkdir(parents=True, exist_ok=True)
    found = json.loads(go(["mod", "download", "-json", KUBERNETES], work))
    document: dict[str, Any] = json.loads(
        (Path(found["Dir"]) / "api/openapi-spec/swagger.json").read_text("utf-8")
    )
    return document


def write_core_schemas(document: dict[str, Any], folder: Path) -> None:
    """A JSON schema for each kind of Kubernetes."""
    definitions = {name: strict(schema) for name, schema in document["definitions"].items()}
    definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = INT_OR_STRING
    for name, schema in document["definitions"].items():
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            group = kind["group"].partition(".")[0]
            suffix = "-".join(filter(None, [group, kind["version"]]))
            file = folder / f"{kind['kind'].lower()}-{suffix}.json"
            used = {each: definitions[each] for each in reachable(definitions, name)}
            file.write_text(json.dumps({"$ref": PREFIX + name, "definitions": used}))


def reachable(definitions: dict[str, Any], name: str) -> set[str]:
    """The names of the definitions that one refers to, with its own."""
    found: set[str] = set()
    pending = [name]
    while pending:
        each = pending.pop()
        if each not in found:
            found.add(each)
            text = json.dumps(definitions[each])
            pending += re.findall(rf'"\$ref": "{PREFIX}([^"]+)"', text)
    return found


def write_crd_schema(path: Path, folder: Path) -> None:
    """The JSON schema of each version of a CustomResourceDefinition."""
    crd = yaml.safe_load(path.read_text("utf-8"))["spec"]
    group = crd["group"].partition(".")[0]
    for version in crd["versions"]:
        schema = strict(version["schema"]["openAPIV3Schema"])
        schema["properties"] |= {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
        }
        name = f"{crd['names']['kind'].lower()}-{group}-{version['name']}.json"
        (folder / name).write_text(json.dumps(schema))


def add_used(used: dict[str, Any], definitions: dict[str, Any], manifests: bytes) -> None:
    """Add what the manifests use of Kubernetes' schemas to ``used``, by API version and kind."""
    kinds = {
        "/".join(filter(None, [kind["group"], kind["version"], kind["kind"]])): schema
        for schema in definitions.values()
        for kind in schema.get("x-kubernetes-group-version-kind", [])
    }
    for document in yaml.safe_load_all(manifests):
        name = f"{document['apiVersion']}/{document['kind']}"
        if name in kinds:
            used[name] = excerpt(used.get(name), definitions, kinds[name], document)
        else:
            template = document["spec"].get("podTemplate")
            schema = definitions["io.k8s.api.core.v1.PodTemplateSpec"]
            name = "v1/PodTemplateSpec"
            used[name] = excerpt(used.get(name), definitions, schema, template)


def excerpt(
    known: dict[str, Any] | None, definitions: dict[str, Any], schema: Any, value: Any
) -> dict[str, Any]:
    """The schema without the properties that neither ``value`` nor ``known`` has."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(PREFIX)
        if name.endswith(".IntOrString"):
            return INT_OR_STRING
        schema = definitions[name]
    out = {key: schema[key] for key in ("type", "enum", "required") if key in schema}
    known = known or {}
    if "properties" in schema:
        properties = dict(known.get("properties", {}))
        for key, each in value.items():
            inner = schema["properties"][key]
            properties[key] = excerpt(properties.get(key), definitions, inner, each)
        out |= {"properties": properties, "additionalProperties": False}
    elif isinstance(value, dict):
        inner = schema.get("additionalProperties", {})
        out["additionalProperties"] = excerpt(None, definitions, inner, "")
    elif isinstance(value, list):
        items = known.get("items")
        for each in value:
            items = excerpt(items, definitions, schema["items"], each)
        out["items"] = items or {}
    return out


def strict(schema: Any) -> Any:
    """The schema without fields that it does not list."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return INT_OR_STRING
    out = {key: strict(value) for key, value in schema.items()}
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and not open_ended:
        out.setdefault("additionalProperties", False)
    return out


if __name__ == "__main__":
    sys.exit(main())
