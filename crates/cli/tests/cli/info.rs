//! `bfc info --json`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{bfc, json, row, run_to};

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().expect("an object").keys().cloned().collect()
}

#[test]
fn the_document_says_what_the_tables_say() {
    let set = [("BFC_MEMORY_LIMT", "8GiB"), ("BFC_MEMORY_LIMIT", "1GiB"), ("BFC_LOG", "loud")];
    let (tables, _) = run_to(0, bfc().arg("info").envs(set));
    let document = json(bfc().arg("info").envs(set));
    assert_eq!(document["schema"], "bfc-info/1");
    assert_eq!(document["library"]["version"].as_str(), row(&tables, "version"));
    assert_eq!(document["library"]["path"].as_str(), row(&tables, "path"));
    let backends = document["backends"].as_array().expect("a list");
    for (label, name, device) in
        [("host", "host", 258), ("auto, host (256)", "auto", 256), ("cuda, device 0", "cuda", 0)]
    {
        let found = backends.iter().find(|found| found["backend"] == name && found["device"] == device);
        let found = found.unwrap_or_else(|| panic!("no {label} in {document}"));
        let told = row(&tables, label).expect("a row");
        assert_eq!(found["available"], told == "yes", "{label}");
        assert_eq!(found["reason"].as_str(), told.strip_prefix("no: "), "{label}");
    }
    let variables = document["environment"].as_array().expect("a list");
    let of = |name: &str| {
        let found = variables.iter().find(|variable| variable["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {document}")).clone()
    };
    let limit = of("BFC_MEMORY_LIMIT");
    assert_eq!(
        (&limit["value"], &limit["used"], &limit["remark"]),
        (&"1GiB".into(), &true.into(), &Value::Null)
    );
    assert_eq!(of("BFC_MEMORY_LIMT")["remark"], "unknown: no variable of libbfc has this name");
    assert!(of("BFC_LOG")["remark"].as_str().is_some_and(|remark| remark.starts_with("taken for warn")));
}

/// The page and the help have the fields that there are.
#[test]
fn every_field_is_documented() {
    // Without growth, so that there is a setting to name.
    let document = json(bfc().arg("info").envs([("BFC_LOG", "off"), ("BFC_ALLOW_GROWTH", "0")]));
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/environment.md"));
    let page = page.expect("the page");
    let section = page.split("### `bfc info --json`").nth(1).expect("its section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let (help, _) = run_to(0, bfc().args(["info", "--help"]));
    let help = help.split("The JSON document").nth(1).expect("the fields");
    let lists = ["library", "backends", "environment", "costs"];
    let inner = lists.iter().flat_map(|list| {
        let value = &document[list];
        keys(if value.is_array() { &value[0] } else { value })
    });
    for key in keys(&document).into_iter().chain(inner) {
        assert!(section.contains(&format!("`{key}`")), "docs/environment.md has no {key}");
        assert!(help.contains(&key), "bfc info --help has no {key}");
    }
}
