//! The sentence about what there is to choose from, where a model or another value is not offered: the closest first.

/// How many values a sentence names.
const SHOWN: usize = 5;

/// Says what is offered instead of `wanted`: all of a short list, else the closest and how many there are.
pub(crate) fn offers(wanted: &str, offered: &[String]) -> String {
    let list =
        |values: &[&String]| values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
    let mut values: Vec<&String> = offered.iter().collect();
    match values.len() {
        0 => return "it offers none".to_owned(),
        all if all <= SHOWN => return format!("it offers {}", list(&values)),
        _ => {}
    }
    let folded = wanted.to_lowercase();
    let likeness = |value: &str| {
        let value = value.to_lowercase();
        let likeness = strsim::jaro_winkler(&folded, &value);
        // A name within the other one is meant more often than one that looks like it.
        if value.contains(&folded) || folded.contains(&value) { likeness + 1.0 } else { likeness }
    };
    values.sort_by(|left, right| likeness(right).total_cmp(&likeness(left)));
    let closest = list(values.get(..SHOWN).unwrap_or_default());
    format!("the closest of the {} that it offers are {closest}", values.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_come_first() {
        let many: Vec<String> = (0..40)
            .map(|number| format!("vendor/other-{number}"))
            .chain(["openai/gpt-5".to_owned(), "anthropic/claude-sonnet-4-5".to_owned()])
            .collect();
        let few = ["high".to_owned(), "low".to_owned()];
        let first = |wanted: &str| offers(wanted, &many).split('`').nth(1).map(str::to_owned);
        assert_eq!(first("sonnet"), Some("anthropic/claude-sonnet-4-5".to_owned()));
        assert_eq!(first("anthropic/claude-sonet-4-5"), Some("anthropic/claude-sonnet-4-5".to_owned()));
        assert_eq!(first("GPT-5"), Some("openai/gpt-5".to_owned()));
        assert!(offers("sonnet", &many).starts_with("the closest of the 42 that it offers are `"));
        assert_eq!(offers("sonnet", &many).matches('`').count(), 2 * SHOWN);
        assert_eq!(offers("lo", &few), "it offers `high`, `low`");
        assert_eq!(offers("lo", &[]), "it offers none");
    }
}
