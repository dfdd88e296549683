//! The files of `packaging/` for the agent: rules, alerts, dashboard, unit, manifests. Checks whose tools are missing
//! are skipped with the reason.

use agent::decision::{Reason, State};
use agent::metrics::{Heard, Lifted, ProgramGain, Snapshot, text::open_metrics};
use agent::rules::{Configuration, Mode, read_folder};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging")
}

fn text(path: &str) -> String {
    fs::read_to_string(packaging().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Runs a tool in a folder of `packaging/`; `None` if it is not installed.
fn tool(folder: &str, program: &str, words: &[&str], fix: &str) -> Option<Output> {
    match Command::new(program).args(words).current_dir(packaging().join(folder)).output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: {program}: {error}; fix: {fix}");
            None
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

const APT_PROMETHEUS: &str = "apt install prometheus";

/// A snapshot in which every metric has a sample.
fn everything() -> Snapshot {
    let mut snapshot = Snapshot::new("0.1.0", Mode::Act);
    snapshot.processes.insert(State::ALL[0], 1);
    snapshot.refusals.insert(Reason::ALL[0], 1);
    snapshot.lifted.push(Lifted { program: "a".to_owned(), source: "thp", page_size: 2 << 20, bytes: 1, private: 1 });
    snapshot.gains.push(ProgramGain { program: "a".to_owned(), gain: [0.0; 3] });
    snapshot.kernel.pools.push(machine_facts::PoolCounts {
        size: address_space::PageSize::new(2 << 20).unwrap(),
        total: 0,
        free: 0,
        reserved: 0,
        surplus: 0,
        overcommit: 0,
        demotes_to: None,
        nodes: Vec::new(),
    });
    snapshot.kernel.vmstat.push(("thp_fault_alloc", 1));
    snapshot.kernel.shootdowns = Some(1);
    snapshot.exec_events = Some(Heard::default());
    snapshot
}

/// Names of samples in a scrape.
fn scraped() -> BTreeSet<String> {
    let text = open_metrics(&everything());
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned())).collect()
}

/// Names of metrics in a text: words that begin as ours do.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_name = |word: &&str| word.starts_with("pagelift_") || word.starts_with("process_");
    words.filter(is_name).map(str::to_owned).collect()
}

/// The queries of the dashboard.
fn queries() -> Vec<String> {
    fn collect(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                found.extend(fields.get("expr").and_then(serde_json::Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| collect(value, found));
            }
            serde_json::Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(&serde_json::from_str(&text("grafana/pagelift.json")).unwrap(), &mut found);
    found
}

/// Reads rules from files that nobody else may write, whoever owns the sources, and whatever their modes are.
fn read_rules(files: &[(String, String)]) -> Configuration {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    }
    read_folder(folder.path()).unwrap_or_else(|errors| panic!("{files:?}: {errors:?}"))
}

#[test]
fn example_rules_are_understood() {
    let examples = fs::read_dir(packaging().join("examples/agent.d")).unwrap();
    let examples: Vec<(String, String)> = examples
        .map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let example = text(&format!("examples/agent.d/{name}"));
            (name, example)
        })
        .collect();
    assert_eq!(examples.len(), 2);
    let configuration = read_rules(&examples);
    assert_eq!(configuration.settings.mode, Mode::Observe, "an example that is copied lifts nothing");
    assert_eq!(configuration.rules.len(), 2);
    let acts = |text: &str| text.replace("mode = \"observe\"", "mode = \"act\"");
    let act: Vec<_> = examples.iter().map(|(name, example)| (name.clone(), acts(example))).collect();
    assert_eq!(read_rules(&act).settings.mode, Mode::Act);
}

#[test]
fn rules_in_manifests_are_understood() {
    for (path, key) in
        [("kubernetes/10-rules.yaml", "50-pods.toml: |\n"), ("helm/pagelift/values.yaml", "50-pods.toml: |\n")]
    {
        let all = text(path);
        let rules = all.split_once(key).unwrap().1;
        let rules: Vec<&str> = rules.lines().take_while(|line| line.is_empty() || line.starts_with("    ")).collect();
        let rules = rules.join("\n").replace("mode = \"observe\"", "mode = \"act\"");
        assert_eq!(read_rules(&[("50.toml".to_owned(), rules)]).rules.len(), 1, "{path}");
    }
}

#[test]
fn alerts_and_dashboard_name_metrics_that_are_scraped() {
    let scraped = scraped();
    assert!(scraped.len() > 20, "{scraped:?}");
    let known = |name: &String| scraped.contains(name);
    for (path, used) in [
        ("prometheus/pagelift-alerts.yml", names(&text("prometheus/pagelift-alerts.yml"))),
        ("grafana/pagelift.json", names(&queries().join("\n"))),
    ] {
        let unknown: Vec<&String> = used.iter().filter(|name| !known(name)).collect();
        assert!(unknown.is_empty() && used.len() > 8, "{path}: {unknown:?} of {used:?}");
    }
    let shown = names(&queries().join("\n"));
    let base = |name: &&String| !name.ends_with("_sum") && !name.ends_with("_count") && !name.contains("timestamp");
    let not_shown: Vec<&String> = scraped.iter().filter(base).filter(|name| !shown.contains(*name)).collect();
    assert!(not_shown.len() <= 4, "not in the dashboard: {not_shown:?}");
}

#[test]
fn prometheus_accepts_the_alerts() {
    for words in [["check", "rules", "pagelift-alerts.yml"], ["test", "rules", "pagelift-alerts-test.yml"]] {
        let Some(output) = tool("prometheus", "promtool", &words, APT_PROMETHEUS) else { return };
        assert!(output.status.success() && said(&output).contains("SUCCESS"), "{}", said(&output));
    }
}

#[test]
fn prometheus_parses_each_query_of_the_dashboard() {
    let queries = queries();
    assert!(queries.len() > 20);
    let folder = tempfile::tempdir().unwrap();
    let check = |queries: &[String]| {
        let rules = queries.iter().enumerate().map(|(number, query)| {
            let query = query.replace("$instance", ".*").replace('\'', "''");
            format!("      - record: query:{number}\n        expr: '{query}'\n")
        });
        let file = folder.path().join("queries.yml");
        let text = format!("groups:\n  - name: queries\n    rules:\n{}", rules.collect::<String>());
        fs::write(&file, text).unwrap();
        tool(".", "promtool", &["check", "rules", file.to_str().unwrap()], APT_PROMETHEUS)
    };
    let Some(output) = check(&queries) else { return };
    assert!(output.status.success(), "{}", said(&output));
    let wrong = check(&["sum by (".to_owned()]).unwrap();
    assert!(!wrong.status.success(), "a query that is wrong is found");
}

#[test]
fn the_unit_is_confined() {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("pagelift-agent.service");
    fs::write(&unit, text("systemd/pagelift-agent.service.in").replace("@PREFIX@", "/usr")).unwrap();
    let words = ["security", "--offline=true", "--threshold=35", unit.to_str().unwrap()];
    let Some(output) = tool(".", "systemd-analyze", &words, "apt install systemd") else { return };
    let said = said(&output);
    if said.contains("unrecognized option") {
        eprintln!("skipped: systemd-analyze is older than 250");
        return;
    }
    assert!(output.status.success() && said.contains("Overall exposure level"), "{said}");
}

/// `agent stop` ends the agent of the unit, and its worker's memory does not.
#[test]
fn the_unit_stays_stopped_and_survives_its_workers() {
    let unit = text("systemd/pagelift-agent.service.in");
    for line in ["Restart=on-failure", "OOMPolicy=continue"] {
        assert!(unit.lines().any(|other| other == line), "{line}");
    }
}

/// Python with the validator that `scripts/fetch-test-schemas` installs, or another with it.
fn python(words: &[&str]) -> Option<Output> {
    let fix = "scripts/fetch-test-schemas, or pip install kubernetes-validate, and PAGELIFT_PYTHON=its python3";
    let mut command = Command::new(std::env::var("PAGELIFT_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".to_owned()));
    let installed = packaging().join("../target/kubernetes-validate");
    if installed.exists() && std::env::var("PAGELIFT_PYTHON").is_err() {
        command.env("PYTHONPATH", installed);
    }
    let output = command.args(words).output().inspect_err(|error| eprintln!("skipped: {error}; fix: {fix}")).ok()?;
    if said(&output).contains("ModuleNotFoundError") {
        eprintln!("skipped: no module kubernetes_validate; fix: {fix}");
        return None;
    }
    Some(output)
}

/// Validates files by the schemas of Kubernetes. Unknown fields are errors. `None` if there is no validator.
fn validate(paths: &[&Path]) -> Option<Output> {
    let script = "import sys, yaml, kubernetes_validate\n\
        for path in sys.argv[1:]:\n\
        \u{20}for document in yaml.safe_load_all(open(path)):\n\
        \u{20}\u{20}kubernetes_validate.validate(document, '1.34', strict=True)\n";
    let paths: Vec<&str> = paths.iter().filter_map(|path| path.to_str()).collect();
    python(&[&["-c", script], &paths[..]].concat())
}

#[test]
fn manifests_fit_the_schemas_of_kubernetes() {
    let files: Vec<PathBuf> =
        fs::read_dir(packaging().join("kubernetes")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let paths: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    assert!(paths.len() >= 5);
    let Some(output) = validate(&paths) else { return };
    assert!(output.status.success(), "{}", said(&output));
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("wrong.yaml");
    fs::write(&wrong, text("kubernetes/20-daemonset.yaml").replace("hostPID:", "hostPid:")).unwrap();
    let output = validate(&[&wrong]).unwrap();
    assert!(!output.status.success() && said(&output).contains("hostPid"), "{}", said(&output));
}

/// From its own cgroup namespace the pod sees no limits of others, and its image has no machine-id.
#[test]
fn the_pod_sees_cgroups_and_identity_of_the_node() {
    for path in ["kubernetes/20-daemonset.yaml", "helm/pagelift/templates/daemonset.yaml"] {
        let manifest = text(path);
        for (name, on_node, in_pod) in
            [("cgroup", "/sys/fs/cgroup", "/host/sys/fs/cgroup"), ("machine-id", "/etc/machine-id", "/etc/machine-id")]
        {
            let mount = format!("- name: {name}\n              mountPath: {in_pod}\n              readOnly: true\n");
            let volume = format!("- name: {name}\n          hostPath:\n            path: {on_node}\n");
            assert!(manifest.contains(&mount) && manifest.contains(&volume), "{path}: {name}");
        }
    }
}

/// The pod has the two capabilities that `attach` needs, and no right that administrators refuse.
#[test]
fn the_pod_has_few_rights() {
    for path in ["kubernetes/20-daemonset.yaml", "helm/pagelift/templates/daemonset.yaml"] {
        let manifest = text(path);
        for needed in [
            "hostPID: true",
            "automountServiceAccountToken: false",
            "allowPrivilegeEscalation: false",
            "readOnlyRootFilesystem: true",
            "privileged: false",
            "drop: [ALL]",
            "maxUnavailable: 10%",
        ] {
            assert!(manifest.contains(needed), "{path}: {needed}");
        }
        let profile = if path.starts_with("helm") { "{{ .Values.seccompProfile }}" } else { "RuntimeDefault" };
        assert!(manifest.contains(&format!("seccompProfile:\n              type: {profile}\n")), "{path}");
        assert!(!manifest.contains("SYS_ADMIN") && !manifest.contains("serviceAccountName"), "{path}");
    }
    let values = text("helm/pagelift/values.yaml");
    for line in ["extraCapabilities: []", "seccompProfile: RuntimeDefault"] {
        assert!(values.lines().any(|other| other == line), "{line}");
    }
}

/// Runs helm, built by `make test-kubernetes` or installed.
fn helm(words: &[&str]) -> Option<Output> {
    let built = packaging().join("../target/kubernetes/bin/helm");
    let built = built.exists().then(|| built.display().to_string());
    let helm = std::env::var("PAGELIFT_HELM").ok().or(built).unwrap_or_else(|| "helm".to_owned());
    tool("helm", &helm, words, "make test-kubernetes, or go install helm.sh/helm/v3/cmd/helm@latest")
}

/// Renders the chart with values. A helm that `go install` has built would assume a server of version 1.20.
fn render(values: &str) -> Option<Output> {
    helm(&["template", "test", "pagelift", "--kube-version", "1.34", "--set", values])
}

#[test]
fn helm_accepts_the_chart() {
    let Some(output) = helm(&["lint", "--strict", "pagelift"]) else { return };
    assert!(output.status.success(), "{}", said(&output));
    // `--set` reads an unquoted word as a values file does.
    for (values, line) in [("killSwitch=restore", "agent.off: \"restore\""), ("killSwitch=false", "agent.off: \"off\"")]
    {
        let output = render(values).unwrap();
        assert!(output.status.success() && said(&output).contains(line), "{values}: {}", said(&output));
    }
    assert!(!said(&render("killSwitch=").unwrap()).contains("agent.off:"));
    assert!(!render("killSwitch=restor").unwrap().status.success(), "a word that is not understood");
}

#[test]
fn the_chart_fits_the_schemas_of_kubernetes() {
    let folder = tempfile::tempdir().unwrap();
    let rendered = folder.path().join("chart.yaml");
    let values = "killSwitch=restore,extraCapabilities={SYS_ADMIN,PERFMON},seccompProfile=Unconfined,nodeSelector.zone=a,\
                  image.tag=x,resources.limits.memory=1Gi";
    for values in ["", values] {
        let Some(output) = render(values) else { return };
        assert!(output.status.success(), "{}", said(&output));
        fs::write(&rendered, &output.stdout).unwrap();
        let Some(output) = validate(&[&rendered]) else { return };
        assert!(output.status.success(), "{values}: {}", said(&output));
    }
}
