//! A history as a picture: requested, in use and held of a pool over time.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::plot::Picture;
use bfc_formats::history::layout::Kind;
use bfc_readers::history::reader::History;
use bfc_readers::history::timeline::follow;

/// Draws the pool that held most, the first of equal ones.
pub fn svg(history: &History) -> Result<String> {
    let (mut held, mut limits) = (BTreeMap::<u16, u64>::new(), BTreeMap::<u16, u64>::new());
    follow(history, |event, state| {
        if event.kind != Kind::Mark {
            let most = held.entry(event.pool).or_default();
            *most = state.held.max(*most);
            let limit = limits.entry(event.pool).or_default();
            *limit = state.limit.max(*limit);
        }
    });
    let Some((&pool, _)) = held.iter().max_by_key(|&(&pool, &bytes)| (bytes, u16::MAX - pool)) else {
        bail!("the history has no allocator to draw");
    };
    let (device, name) = history.pool(pool).unwrap_or((-1, ""));
    let title = format!("{}: device {device} ({name})", history.program);
    let end = history.events.iter().map(|event| event.time).max().unwrap_or(0).saturating_add(1);
    let axis = if end < 1_000_000_000 { ("milliseconds", 1_000_000) } else { ("seconds", 1_000_000_000) };
    let mut picture = Picture::new(&title, axis, end, "requested", limits.get(&pool).copied().unwrap_or(0));
    let mut place = 0;
    follow(history, |event, state| {
        if event.kind == Kind::Mark || event.pool != pool {
            return;
        }
        // Another thread may have read the counter a little earlier.
        place = event.time.max(place);
        picture.live.add(place, state.requested);
        picture.in_use.add(place, state.in_use);
        picture.held.add(place, state.held);
        if event.kind == Kind::OutOfMemory {
            picture.fail(place);
        }
    });
    picture.svg()
}
