//! Pools in one range that is mapped in granules.

use super::*;

/// The bytes of one.
pub const GRANULE: u64 = 2 * MIB;

/// Returns whether there are as many whole granules as a request needs: free ones, and those that the limit leaves.
pub fn enough(pool: &Pool, bytes: u64) -> bool {
    let map: serde_json::Value = serde_json::from_str(&pool.memory_map()).expect("JSON");
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let mut left = (number(&map["stats"]["bytes_limit"]) - number(&map["stats"]["pool_bytes"])) / GRANULE;
    for chunk in map["regions"].as_array().into_iter().flatten().flat_map(|r| r["chunks"].as_array().unwrap())
    {
        if chunk["state"] == "free" {
            let text = chunk["address"].as_str().expect("text").trim_start_matches("0x");
            let from = u64::from_str_radix(text, 16).expect("an address");
            let to = from + number(&chunk["size"]);
            left += (to / GRANULE).saturating_sub(from.div_ceil(GRANULE));
        }
    }
    bytes.div_ceil(GRANULE) <= left
}
