//! Sorting without a stack buffer. The standard library's sorts take up to 4 KiB of stack, which threads with small
//! stacks do not have.

/// Sorts by a key with heapsort. The order of equal elements is unspecified.
pub fn sort_by_key<T, K: Ord>(list: &mut [T], key: impl Fn(&T) -> K) {
    for start in (0..list.len() / 2).rev() {
        sink(list, start, &key);
    }
    for end in (1..list.len()).rev() {
        list.swap(0, end);
        sink(&mut list[..end], 0, &key);
    }
}

/// Moves an element down until no element below it is greater.
fn sink<T, K: Ord>(list: &mut [T], mut at: usize, key: &impl Fn(&T) -> K) {
    loop {
        let below = [2 * at + 1, 2 * at + 2].into_iter().filter(|&below| below < list.len());
        let Some(greatest) = below.max_by_key(|&below| key(&list[below])) else { return };
        if key(&list[greatest]) <= key(&list[at]) {
            return;
        }
        list.swap(at, greatest);
        at = greatest;
    }
}

#[cfg(test)]
mod tests {
    use super::sort_by_key;

    #[test]
    fn every_list_is_sorted() {
        for length in 0..70u32 {
            for factor in [0, 1, 7, 33, u32::MAX] {
                let mut list: Vec<u32> = (0..length).map(|number| number.wrapping_mul(factor) % 64).collect();
                let mut expected = list.clone();
                expected.sort_unstable();
                sort_by_key(&mut list, |&number| number);
                assert_eq!(list, expected);
                sort_by_key(&mut list, |&number| std::cmp::Reverse(number));
                assert!(list.iter().rev().eq(&expected));
            }
        }
    }
}
