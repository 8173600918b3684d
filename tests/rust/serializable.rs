//! The feature `serde`.

use crate::host_pool;
use serde_json::{Value, to_value};

#[test]
fn statistics_and_layout_have_the_names_of_their_fields() {
    let pool = host_pool(|builder| builder.memory_limit(1 << 20));
    let _block = pool.alloc(1000).unwrap();
    let stats = to_value(pool.stats().unwrap()).unwrap();
    assert_eq!((&stats["bytes_requested"], &stats["bytes_in_use"]), (&1000.into(), &1024.into()));
    assert_eq!(stats.as_object().unwrap().len(), bfc::Stats::COUNT);

    let regions = to_value(pool.regions().unwrap()).unwrap();
    let chunks = regions[0]["chunks"].as_array().unwrap();
    assert_eq!((&chunks[0]["state"], &chunks[0]["requested"]), (&"in_use".into(), &1000.into()));
    assert_eq!((&chunks[1]["state"], &chunks[1]["operation"]), (&"free".into(), &Value::Null));

    let error = pool.alloc(2 << 20).unwrap_err();
    let numbers = to_value(error.out_of_memory().unwrap()).unwrap();
    assert_eq!((&numbers["requested"], &numbers["cause"]), (&(2 << 20).into(), &"exhaustion".into()));
}
