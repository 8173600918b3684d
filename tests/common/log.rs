//! Messages of the library, collected.

use super::*;
use std::sync::Mutex;

/// Collects messages until it is dropped. There is one callback per process: only tests that are
/// alone in theirs, or in a child, may use it.
pub struct Collected(Box<Mutex<Vec<(i32, String)>>>);

impl Collected {
    /// Begins collecting.
    pub fn start() -> Collected {
        let messages = Box::new(Mutex::new(Vec::new()));
        let place = std::ptr::from_ref(&*messages).cast_mut().cast();
        assert_eq!(bfc_set_log_callback(Some(collect), place), BFC_OK);
        Collected(messages)
    }

    /// Returns all messages so far, with their levels.
    pub fn messages(&self) -> Vec<(i32, String)> {
        self.0.lock().unwrap().clone()
    }

    /// Returns the messages that contain a text.
    pub fn with(&self, text: &str) -> Vec<String> {
        let messages = self.messages().into_iter().map(|(_, message)| message);
        messages.filter(|message| message.contains(text)).collect()
    }
}

impl Drop for Collected {
    fn drop(&mut self) {
        bfc_set_log_callback(None, std::ptr::null_mut());
    }
}

extern "C" fn collect(user_data: *mut c_void, level: i32, message: *const c_char) {
    // SAFETY: the pointer is to the collection, which outlives the callback.
    let messages = unsafe { &*user_data.cast::<Mutex<Vec<(i32, String)>>>() };
    // SAFETY: the library passes a NUL-terminated text.
    let message = unsafe { CStr::from_ptr(message) };
    messages.lock().unwrap().push((level, message.to_str().expect("UTF-8").to_owned()));
}
