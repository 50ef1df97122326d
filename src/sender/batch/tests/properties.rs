//! What is true of any body: nothing vanishes, nothing is invented, nothing panics.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const PATHS: &[&str] = &[
    "/a/*/b/*",
    "/a/*/c/b/*",
    "/a/*",
    "/c/*/*",
    "/*/a/*",
    "/b/*/a/*/b/*",
];

/// The items as the rules say, of a value: with each path as its names.
fn expected(value: &Value, paths: &[&[&str]]) -> Option<Vec<Value>> {
    let after = |name: &str| -> Vec<&[&str]> {
        let with = paths.iter().filter(|path| path.first() == Some(&name));
        with.map(|path| &path[1..]).collect()
    };
    match value {
        Value::Array(list) => {
            let paths = Some(after("*")).filter(|paths| !paths.is_empty())?;
            let items = list.iter().flat_map(|it| match expected(it, &paths) {
                Some(items) if !items.is_empty() => items,
                _ => vec![it.clone()],
            });
            Some(items.collect())
        }
        Value::Object(map) => {
            let found: Vec<_> = map
                .iter()
                .filter_map(|(name, value)| expected(value, &after(name)))
                .collect();
            (!found.is_empty()).then(|| found.concat())
        }
        _ => None,
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-c\\[\\]{}\",:\\\\ é\u{1f600}]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(7, 60, 4, |inner| {
        prop_oneof![
            2 => vec(inner.clone(), 0..4).prop_map(Value::from),
            3 => vec(("[abc]", inner), 0..4).prop_map(|fields| fields.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn items_are_slices_of_the_body_and_all_there_is(
        value in value(), is_pretty in any::<bool>(), chosen in 1_u8..64,
    ) {
        let chosen: Vec<_> = (0..PATHS.len()).filter(|index| chosen >> index & 1 == 1).collect();
        let paths: Vec<_> = chosen.iter().map(|index| PATHS[*index]).collect();
        let names: Vec<Vec<_>> = paths.iter().map(|path| path.split('/').skip(1).collect()).collect();
        let names: Vec<_> = names.iter().map(Vec::as_slice).collect();
        let body = match is_pretty {
            true => serde_json::to_string_pretty(&value).unwrap(),
            false => value.to_string(),
        };
        let body = Bytes::from(body);
        let found = match sender(json!(paths)).parts(&delivery(body.clone())) {
            Parts::Items(parts) => Some(parts),
            Parts::Whole => None,
            Parts::TooMany => panic!("{value}"),
        };
        let mut end = 0;
        for part in found.iter().flatten() {
            let from = part.body.as_ptr() as usize - body.as_ptr() as usize;
            // In order, disjoint and no copy.
            prop_assert!(from >= end && from + part.body.len() <= body.len());
            end = from + part.body.len();
            prop_assert_eq!(part.body.trim_ascii().len(), part.body.len());
        }
        let decoded = |part: Part| serde_json::from_slice::<Value>(&part.body).unwrap();
        let found: Option<Vec<_>> = found.map(|parts| parts.into_iter().map(decoded).collect());
        prop_assert_eq!(found, expected(&value, &names), "{} {:?}", value, paths);
    }

    #[test]
    fn a_mutated_body_is_split_or_whole(
        value in value(), at in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let described = json!([
            { "path": "/a/*/b/*", "key": { "join": ["/a", "^/a/*/c"] }, "kind": ["/b", "^/c"], "keep": ["^/a/*/a/0", "^/c"] },
            { "path": "/a/*", "key": "digest", "order": "^/b/1/a" },
            "/*",
        ]);
        let mut body = value.to_string().into_bytes();
        for (index, byte) in at {
            let index = index.index(body.len());
            body[index] = byte;
        }
        body.truncate(body.len() - cut.index(body.len()) / 4);
        if let Parts::Items(parts) = sender(described).parts(&delivery(body.clone())) {
            prop_assert!(serde_json::from_slice::<Value>(&body).is_ok());
            for part in parts {
                prop_assert!(serde_json::from_slice::<Value>(&part.body).is_ok());
                prop_assert!(!part.key.as_bytes().is_empty());
                let kept = part.kept.map(|kept| serde_json::from_slice::<Value>(&kept));
                prop_assert!(kept.is_none_or(|kept| kept.is_ok_and(|kept| kept.is_object())));
            }
        }
    }
}
