//! Events that cover no work, and are recorded for the next free that needs one.

use crate::backend::order::{Context, Event};

/// Spare events. Those of other contexts are apart, because all of them are destroyed whenever a stream is forgotten.
#[derive(Default)]
pub(super) struct Spare {
    own: Vec<Event>,
    foreign: Vec<Event>,
}

impl Spare {
    pub(super) fn add(&mut self, event: Event) {
        let list = if event.context == Context::OWN { &mut self.own } else { &mut self.foreign };
        keep(list, event);
    }

    /// Takes an event of a context, if there is one.
    pub(super) fn take(&mut self, context: Context) -> Option<Event> {
        if context == Context::OWN {
            return self.own.pop();
        }
        let place = self.foreign.iter().rposition(|event| event.context == context)?;
        Some(self.foreign.swap_remove(place))
    }

    /// Takes the events of other contexts.
    pub(super) fn take_foreign(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.foreign)
    }

    /// Takes all events.
    pub(super) fn take_all(&mut self) -> Vec<Event> {
        let mut all = std::mem::take(&mut self.own);
        self.take_foreign().into_iter().for_each(|event| keep(&mut all, event));
        all
    }
}

/// Appends an event to a list. Without host memory the event is leaked in the driver, which does no other harm.
pub(super) fn keep<T>(list: &mut Vec<T>, value: T) {
    if list.try_reserve(1).is_ok() {
        list.push(value);
    }
}
