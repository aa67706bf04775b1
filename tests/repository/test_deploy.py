"""The Kubernetes manifests against the schemas of their kinds."""

from __future__ import annotations

import copy

import pytest

from tests.support.processes import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="kubernetes-validate is not installed"
)

FOLDER = ROOT / "deploy" / "kubernetes"
KUBERNETES = "1.31"

# The fields of the Training Operator's TFJob (kubeflow.org/v1) that its documentation names;
# pod templates are checked against Kubernetes' own schema.
INTEGER = {"type": "integer", "minimum": 0}
REPLICAS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["template"],
    "properties": {
        "replicas": INTEGER,
        "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
        "template": {"type": "object"},
    },
}
TFJOB = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "kubeflow.org/v1"},
        "kind": {"const": "TFJob"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["tfReplicaSpecs"],
            "properties": {
                "enableDynamicWorker": {"type": "boolean"},
                "successPolicy": {"enum": ["", "AllWorkers"]},
                "runPolicy": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "activeDeadlineSeconds": INTEGER,
                        "backoffLimit": INTEGER,
                        "cleanPodPolicy": {"enum": ["All", "Running", "None"]},
                        "managedBy": {"type": "string"},
                        "schedulingPolicy": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {
                                "minAvailable": INTEGER,
                                "minResources": {"type": "object"},
                                "priorityClass": {"type": "string"},
                                "queue": {"type": "string"},
                                "scheduleTimeoutSeconds": INTEGER,
                            },
                        },
                        "suspend": {"type": "boolean"},
                        "ttlSecondsAfterFinished": INTEGER,
                    },
                },
                "tfReplicaSpecs": {
                    "type": "object",
                    "additionalProperties": False,
                    "minProperties": 1,
                    "properties": dict.fromkeys(
                        ("Chief", "Master", "Worker", "PS", "Evaluator"), REPLICAS
                    ),
                },
            },
        },
    },
}


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def validate(document):
    """Raises unless a document is what Kubernetes or the Training Operator accepts."""
    if document["kind"] != "TFJob":
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        return
    jsonschema.validate(document, TFJOB)
    for replicas in document["spec"]["tfReplicaSpecs"].values():
        template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "replica"}}
        kubernetes_validate.validate(
            {**template, "template": replicas["template"]}, KUBERNETES, strict=True
        )


def pods(document):
    """The specifications of a document's pods."""
    if document["kind"] == "TFJob":
        return [spec["template"]["spec"] for spec in document["spec"]["tfReplicaSpecs"].values()]
    return [document["spec"]["template"]["spec"]] if document["kind"] == "Deployment" else []


def all_documents():
    return [
        (path.name, place)
        for path in sorted(FOLDER.glob("*.yaml"))
        for place in range(len(documents(path.name)))
    ]


def test_both_deployments_are_there():
    kinds = [documents(name)[place]["kind"] for name, place in all_documents()]
    assert sorted(set(kinds)) == ["Deployment", "PersistentVolumeClaim", "Service", "TFJob"]


@pytest.mark.parametrize("name, place", all_documents())
def test_a_manifest_follows_its_schema(name, place):
    validate(documents(name)[place])


@pytest.mark.parametrize("name, place", all_documents())
def test_a_slip_in_a_manifest_is_found(name, place):
    document = documents(name)[place]
    broken = copy.deepcopy(document)
    broken["spec"]["replica"] = 1
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        validate(broken)
    for pod in pods(document):
        pod["containers"][0]["image"] = 5
        with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
            validate(document)


@pytest.mark.parametrize("name, place", all_documents())
def test_pods_are_modest(name, place):
    document = documents(name)[place]
    claims = {
        entry["metadata"]["name"]
        for entry in documents(name)
        if entry["kind"] == "PersistentVolumeClaim"
    }
    for pod in pods(document):
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        used = {
            volume["persistentVolumeClaim"]["claimName"]
            for volume in pod["volumes"]
            if "persistentVolumeClaim" in volume
        }
        assert used and used <= claims
        for container in pod["containers"]:
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
            assert container["resources"]["limits"]["memory"]
            assert not container["securityContext"]["allowPrivilegeEscalation"]
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()


def test_the_job_is_one_the_operator_and_the_step_understand():
    [job] = [document for document in documents("train-tfjob.yaml") if document["kind"] == "TFJob"]
    replicas = job["spec"]["tfReplicaSpecs"]
    assert replicas["Chief"]["replicas"] == 1 and replicas["Worker"]["replicas"] > 1
    for spec in replicas.values():
        [container] = spec["template"]["spec"]["containers"]
        # The names and the port that the operator looks for.
        assert container["name"] == "tensorflow"
        assert {"name": "tfjob-port", "containerPort": 2222} in container["ports"]
        command = container["command"]
        assert command[:4] == ["python", "-m", "pipelines", "train"]
        assert command[command.index("--strategy") + 1] == "multi-worker"


def test_the_server_is_ready_when_its_model_is():
    _, deployment, service = documents("serving.yaml")
    [pod] = pods(deployment)
    [container] = pod["containers"]
    options = dict(option.removeprefix("--").split("=") for option in container["args"])
    name = options["model_name"]
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert ports == {"grpc": options["port"], "rest": options["rest_api_port"]}
    probe = container["readinessProbe"]["httpGet"]
    assert probe == {"path": f"/v1/models/{name}", "port": "rest"}
    mounts = [mount["mountPath"] for mount in container["volumeMounts"] if mount.get("readOnly")]
    assert any(options["model_base_path"] == f"{place}/{name}" for place in mounts)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert {port["targetPort"] for port in service["spec"]["ports"]} == ports.keys()
