//! Where two pieces of JSON differ.

use serde_json::Value;

/// A line for each place where they differ: `training.Perceptron.parameters: 5 and 6`. Nothing if they are equal.
pub fn differences(one: &Value, other: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    compare("", one, other, &mut lines);
    lines
}

fn compare(place: &str, one: &Value, other: &Value, lines: &mut Vec<String>) {
    let inside = |name: &str| if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
    match (one, other) {
        (Value::Object(first), Value::Object(second)) => {
            for (name, value) in first {
                compare(&inside(name), value, second.get(name).unwrap_or(&Value::Null), lines);
            }
            let new = second.iter().filter(|(name, _)| !first.contains_key(*name));
            new.for_each(|(name, value)| compare(&inside(name), &Value::Null, value, lines));
        }
        (Value::Array(first), Value::Array(second)) if first.len() == second.len() => {
            for (index, (one, other)) in first.iter().zip(second).enumerate() {
                compare(&inside(&index.to_string()), one, other, lines);
            }
        }
        (Value::Array(first), Value::Array(second)) => {
            lines.push(format!("{place}: {} and {} of them", first.len(), second.len()));
        }
        _ if one != other => lines.push(format!("{place}: {one} and {other}")),
        _ => (),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_difference_is_found_and_named() {
        let one = json!({"a": {"b": [1, 2], "c": "x"}, "d": true, "e": [1]});
        assert!(differences(&one, &one).is_empty());
        let other = json!({"a": {"b": [1, 3], "new": 0}, "d": true, "e": [1, 2]});
        let mut found = differences(&one, &other);
        found.sort();
        assert_eq!(
            found,
            ["a.b.1: 2 and 3", "a.c: \"x\" and null", "a.new: null and 0", "e: 1 and 2 of them"]
        );
        assert_eq!(differences(&json!(1), &json!([1])), [": 1 and [1]"]);
    }
}
