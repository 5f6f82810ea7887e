//! A reusable buffer for building texts, so that the final copy needs a single allocation of the exact size.

use std::cell::Cell;

/// The maximum capacity of the buffer kept by a thread.
const KEPT: usize = 4_096;

thread_local!(static TEXT: Cell<String> = const { Cell::new(String::new()) });

/// Calls `write` with an empty text from this thread's buffer. A nested call uses a separate buffer.
pub(super) fn with_text<T>(write: impl FnOnce(&mut String) -> T) -> T {
    let mut text = TEXT.try_with(Cell::take).unwrap_or_default();
    let result = write(&mut text);
    if text.capacity() <= KEPT {
        text.clear();
        // Fails while the thread-local storage is being destroyed.
        let _ = TEXT.try_with(|kept| kept.set(text));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_empty_in_each_call_also_in_one_within_another() {
        for _ in 0..2 {
            let written = with_text(|outer| {
                outer.push_str("outer");
                let inner = with_text(|inner| {
                    inner.push_str("inner");
                    inner.clone()
                });
                (outer.clone(), inner)
            });
            assert_eq!(written, ("outer".to_owned(), "inner".to_owned()));
        }
    }

    #[test]
    fn memory_is_used_again_unless_it_is_large() {
        let kept_before = |length: usize| {
            with_text(|text| {
                let before = text.capacity();
                text.push_str(&"x".repeat(length));
                before
            })
        };
        kept_before(100);
        assert!(kept_before(KEPT + 1) >= 100);
        assert_eq!(kept_before(1), 0);
    }
}
