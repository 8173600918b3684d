use super::*;
use serde_json::json;

/// Good figures; each just meets its target.
fn good() -> Value {
    let mut rows = Vec::new();
    for (number, gain) in [3.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0 * 4.0 / 3.0].into_iter().enumerate() {
        let name = format!("trace{number}");
        rows.push(json!({"section": "traces", "name": name, "libbfc": 20.0, "ratio": 1.0 / (gain + 1e-9)}));
        let name = format!("{name}, first pass");
        rows.push(json!({"section": "traces", "name": name, "libbfc": 20.0, "ratio": 5.0}));
    }
    for number in 0..7 {
        let name = format!("trace{number}, one stream");
        rows.push(json!({"section": "streams", "name": name, "libbfc": 30.0, "ratio": 1.5}));
    }
    for name in ["serve_mix, four streams", "serve_mix, four, never in step"] {
        rows.push(json!({"section": "streams", "name": name, "libbfc": 40.0, "ratio": 1.6}));
    }
    for live in ["100", "1000", "10000", "100000"] {
        let name = format!("{live} live");
        rows.push(json!({"section": "random_sizes", "name": name, "libbfc": 40.0, "ratio": 0.25}));
        let name = format!("{name}, log-uniform");
        rows.push(json!({"section": "random_sizes", "name": name, "libbfc": 64.0, "ratio": 0.4}));
    }
    for (section, name, figure) in [
        ("random_sizes", "1000000 live", 800.0),
        ("first_allocation", "wall time", 0.999),
        ("first_allocation", "growth of resident memory", 1.999),
        ("host_memory", "growth of resident memory", 150.0),
        ("host_memory", "metadata_bytes", 100.0),
    ] {
        rows.push(json!({"section": section, "name": name, "libbfc": figure}));
    }
    for (name, ratio) in [("1 thread", 4.0), ("2 threads", 3.0), ("4 threads", 2.5), ("8 threads", 2.5)] {
        rows.push(json!({"section": "threads", "name": name, "libbfc": 9.0, "ratio": ratio}));
    }
    for (name, ratio) in [("mlp_tiny", 1.03), ("a", 1.02), ("b", 1.019), ("c", 1.0), ("d", 1.0)] {
        rows.push(json!({"section": "waste", "name": name, "libbfc": ratio}));
    }
    for name in ["e", "f"] {
        rows.push(json!({"section": "waste", "name": name, "libbfc": 1.0}));
    }
    rows.push(json!({"section": "preload", "name": "a pair, with the interposer", "ratio": 3.0}));
    for (name, calls, events) in [
        (driver_calls::ALONE, 0.0, 0.0),
        (driver_calls::SEVERAL, 5.0, 1.0),
        (driver_calls::RECORDED, 10.0, 2.0),
        (driver_calls::OF_THREAD, 2.0, 1.0),
    ] {
        rows.push(json!({"section": "driver_calls", "name": name, "libbfc": calls, "events": events}));
    }
    let limits = json!([{"room": 2.0, "frees": 100.0}]);
    rows.push(json!({"section": "preload", "name": "a, cuda", "peak": 2_u64 << 30, "limits": limits}));
    json!({"results": rows, "summary": {}})
}

/// The good figures with one changed, or taken out.
fn with(section: &str, name: &str, key: &str, value: Option<Value>) -> Value {
    let mut figures = good();
    let rows = figures["results"].as_array_mut().expect("rows");
    let mut named = rows.iter_mut().filter(|row| row["section"] == *section && row["name"] == *name);
    let row = named.next().and_then(Value::as_object_mut).expect("a row of that name");
    match value {
        Some(value) => row.insert(key.to_owned(), value),
        None => row.remove(key),
    };
    figures
}

fn without(unwanted: impl Fn(&Value) -> bool) -> Value {
    let mut figures = good();
    figures["results"].as_array_mut().expect("rows").retain(|row| !unwanted(row));
    figures
}

fn missed(figures: &Value) -> usize {
    judge(figures).iter().filter(|target| target.met == Some(false)).count()
}

#[test]
fn figures_that_just_reach_all_targets_pass() {
    let targets = judge(&good());
    assert_eq!(targets.len(), 30);
    assert!(targets.iter().all(|target| target.met == Some(true)), "{}", table(&targets));
    assert!(!table(&targets).contains("missed"));
}

#[test]
fn each_bad_figure_is_a_target_missed() {
    for (section, name, key, bad) in [
        ("traces", "trace1", "ratio", 0.28),
        ("preload", "a pair, with the interposer", "ratio", 3.01),
        ("random_sizes", "100 live", "ratio", 0.26),
        ("random_sizes", "1000 live", "ratio", 0.26),
        ("random_sizes", "10000 live", "ratio", 0.26),
        ("random_sizes", "100000 live", "ratio", 0.26),
        ("random_sizes", "1000 live, log-uniform", "ratio", 0.41),
        ("random_sizes", "1000000 live", "libbfc", 800.1),
        ("first_allocation", "wall time", "libbfc", 1.0),
        ("first_allocation", "growth of resident memory", "libbfc", 2.0),
        ("host_memory", "metadata_bytes", "libbfc", 100.1),
        ("threads", "1 thread", "ratio", 3.99),
        ("threads", "2 threads", "ratio", 2.99),
        ("threads", "8 threads", "ratio", 2.49),
        ("threads", "8 threads", "libbfc", 8.9),
        ("waste", "a", "libbfc", 1.0201),
        ("waste", "mlp_tiny", "libbfc", 1.04),
        ("streams", "trace5, one stream", "ratio", 1.51),
        ("streams", "serve_mix, four streams", "ratio", 1.61),
        ("streams", "serve_mix, four, never in step", "ratio", 1.61),
        ("driver_calls", driver_calls::OF_THREAD, "libbfc", 2.01),
        ("driver_calls", driver_calls::ALONE, "libbfc", 0.01),
        ("driver_calls", driver_calls::SEVERAL, "events", 1.01),
        ("driver_calls", driver_calls::RECORDED, "events", 2.01),
    ] {
        let figures = with(section, name, key, Some(bad.into()));
        assert_eq!(missed(&figures), 1, "{section}, {name}");
        assert!(table(&judge(&figures)).contains("A target is missed."));
    }
    // One slow program lowers the mean too, unless another makes up for it.
    assert_eq!(missed(&with("traces", "trace0", "ratio", Some(0.7.into()))), 2);
    let mut figures = with("traces", "trace0", "ratio", Some(0.7.into()));
    figures["results"][2]["ratio"] = 0.1.into();
    let targets = judge(&figures);
    assert_eq!((targets[0].met, targets[1].met), (Some(true), Some(false)));
}

#[test]
fn what_is_no_number_or_has_vanished_is_a_target_missed() {
    assert_eq!(missed(&with("traces", "trace3", "ratio", Some(Value::Null))), 2);
    assert_eq!(missed(&with("threads", "2 threads", "ratio", Some(Value::Null))), 1);
    assert_eq!(missed(&with("host_memory", "metadata_bytes", "libbfc", None)), 1);
    assert_eq!(missed(&with("host_memory", "metadata_bytes", "libbfc", Some(0.into()))), 1);
    assert_eq!(missed(&with("streams", "trace5, one stream", "ratio", Some(Value::Null))), 1);
    assert_eq!(missed(&without(|row| row["name"] == "1000 live")), 2);
    assert_eq!(missed(&without(|row| row["name"] == "trace6, one stream")), 1);
    assert_eq!(missed(&without(|row| row["name"] == "serve_mix, four streams")), 1);
    assert_eq!(missed(&without(|row| row["name"] == "wall time")), 1);
    assert_eq!(missed(&without(|row| row["name"] == driver_calls::ALONE)), 1);
    assert_eq!(missed(&with("driver_calls", driver_calls::SEVERAL, "events", Some(Value::Null))), 1);
    assert_eq!(missed(&without(|row| row["name"] == "trace6")), 2);
    assert_eq!(missed(&without(|row| row["name"] == "f")), 2);
    assert_eq!(missed(&with("waste", "f", "libbfc", Some(Value::Null))), 2);
    assert_eq!(missed(&with("waste", "f", "libbfc", Some(0.99.into()))), 2);
}

#[test]
fn what_was_not_measured_is_not_missed() {
    let not_measured = |figures: &Value| {
        let targets = judge(figures);
        assert!(targets.iter().all(|target| target.met != Some(false)), "{}", table(&targets));
        targets.iter().filter(|target| target.met.is_none()).count()
    };
    let mut alone = good();
    for row in alone["results"].as_array_mut().expect("rows") {
        row.as_object_mut().expect("a row").remove("ratio");
    }
    assert_eq!(not_measured(&alone), 18);
    assert!(table(&judge(&alone)).contains("not measured"));
    assert_eq!(not_measured(&without(|row| row["section"] == "traces")), 2);
    assert_eq!(not_measured(&without(|row| row["section"] != "host_memory")), 29);
    assert_eq!(not_measured(&without(|row| row["section"] == "waste")), 2);
    assert_eq!(not_measured(&without(|row| row["section"] == "preload")), 2);
    assert_eq!(not_measured(&without(|row| row["section"] == "driver_calls")), 4);
    assert_eq!(not_measured(&json!({})), 30);
}
