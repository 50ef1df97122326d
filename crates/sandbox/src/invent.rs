//! Invents chats.

use std::collections::BTreeMap;

use fastrand::Rng;
use tower_webhook::event::{Category, ChatLifecycle, Expert, Timestamp, User};

/// Names, countries and languages.
const CUSTOMERS: [(&str, &str, &str); 4] = [
    ("Ada Jensen", "DK", "en"),
    ("Zoë Ångström", "SE", "sv"),
    ("Mateus Oliveira", "BR", "pt"),
    ("伊藤 葵", "JP", "ja"),
];

const CATEGORIES: [(&str, &str); 3] = [
    ("billing", "Billing"),
    ("returns", "Returns"),
    ("tech", "Technical help"),
];

const QUESTIONS: [&str; 3] = [
    "Why was my card charged twice for my last order?",
    "Where is my parcel? 📦",
    "The app says \"try again later\". How much later?",
];

const EXPERTS: [(&str, &str); 2] = [("e-1042", "Noor Haddad"), ("e-2077", "Bo Lindqvist")];

/// Returns a random chat. Some fields are omitted at random, because the spec omits unavailable ones.
pub(super) fn invent(rng: &mut Rng, number: usize, created_at: Timestamp) -> ChatLifecycle {
    let (name, locale, language) = pick(rng, &CUSTOMERS);
    let (category, title) = pick(rng, &CATEGORIES);
    let question = pick(rng, &QUESTIONS);
    let (expert, expert_name) = pick(rng, &EXPERTS);
    let maybe = |rng: &mut Rng, text: &str| rng.bool().then(|| text.to_owned());
    let user = User::default()
        .id(format!("u-{}", rng.u32(10_000..100_000)))
        .name(name.to_owned())
        .email(maybe(rng, "customer@example.com"))
        .locale(locale.to_owned());
    let expert = Expert::default()
        .id(expert.to_owned())
        .name(expert_name.to_owned())
        .email(maybe(rng, "expert@example.com"));
    let category = rng.bool().then(|| {
        Category::default()
            .id(category.to_owned())
            .title(title.to_owned())
    });
    let referer = maybe(rng, "https://shop.example.com/checkout");
    let plan = maybe(rng, "premium").map(|plan| ("plan".to_owned(), plan));
    ChatLifecycle::default()
        .id(format!("c-{number}"))
        .user(user)
        .expert(expert)
        .category(category)
        .question(question.to_owned())
        .language_code(language.to_owned())
        .created_at(created_at)
        .referer(referer)
        .custom_meta(BTreeMap::from_iter(plan))
}

pub(super) fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}
