//! "Did you mean": finds the known word nearest to a mistyped one.

/// Returns the candidate with the fewest typing mistakes from `word`; `None` if that has more mistakes than a third of
/// the word's characters, and more than one. Characters of an end that both have in common do not count: words such as
/// `data_files` and `data_processor` have many ends in common with others.
pub(crate) fn closest_match<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let lower = candidate.to_lowercase();
            let common = word.chars().rev().zip(lower.chars().rev()).take_while(|(a, b)| a == b).count();
            let limit = ((word.chars().count() - common) / 3).max(1);
            let distance = edit_distance(&word, &lower);
            (distance <= limit).then_some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Computes the optimal string alignment: inserted, deleted and replaced characters and swapped neighbors cost one
/// each.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_word_is_suggested() {
        let keys = ["hidden_size", "num_heads", "num_hidden_layers", "eps"];
        for (word, expected) in [
            ("hiden_size", Some("hidden_size")),
            ("num_head", Some("num_heads")),
            ("nmu_heads", Some("num_heads")),
            ("Hidden_Size", Some("hidden_size")),
            ("esp", Some("eps")),
            ("flash_attention", None),
            ("nun_haeds", Some("num_heads")),
            ("dim_heads", None),
            ("", None),
        ] {
            assert_eq!(closest_match(word, keys), expected, "{word}");
        }
    }
}
