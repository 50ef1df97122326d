//! Where events are: the tables that a list reads, as SQL.

use crate::inbox::event::EventState;

/// What [`rows::summary`](super::rows::summary) reads of an event, but for its last failure.
pub(super) const COLUMNS: &str =
    "e.seq, k.route, k.name, e.key, e.chat, s.state::text, e.accepted, s.at, s.due, s.failures,
    e.is_redriven";

/// A page of events, whose first column is their number. Each row begins with the last failure of its event. A page is
/// limited before failures are looked up.
pub(super) fn with_last_failures(page: &str) -> String {
    format!(
        "SELECT f.*, p.* FROM {page} AS p (seq) LEFT JOIN LATERAL (
            SELECT f.at, f.outcome, f.reason, f.took, f.shape FROM {{schema}}.failures AS f
            WHERE f.seq = p.seq ORDER BY f.id DESC LIMIT 1
        ) AS f ON true"
    )
}

/// The time of a statement, which it looks up once.
pub(super) const NOW: &str = "(SELECT {schema}.micros())";

/// The state of a row `t` of a table of unsettled events. A row that is not of `head` has no fence.
pub(super) fn state(fence: &str) -> String {
    format!("{{schema}}.state_of(t.is_tried, t.crashes, {fence}, t.due, {NOW})")
}

pub(super) const NO_FENCE: &str = "NULL::uuid";

/// All events, each with its place.
pub(super) fn every_event() -> String {
    format!(
        "{{schema}}.events AS e JOIN {{schema}}.kinds AS k ON k.id = e.kind CROSS JOIN LATERAL ({}) AS s",
        Look::up().places("")
    )
}

/// How rows of the places are found: a condition for each table that is read.
#[derive(Default)]
pub(super) struct Look {
    head: Option<String>,
    wait: Option<String>,
    aside: Option<String>,
    dead: Option<String>,
    ended: Option<String>,
}

const NUMBERS: &str = "t.seq BETWEEN $1 AND $2";

impl Look {
    /// The place of an event.
    pub(super) fn up() -> Self {
        let by_number = || Some("t.seq = e.seq".to_owned());
        Self {
            head: Some(
                "t.lane = coalesce(e.lane, 0) AND t.own = CASE WHEN e.lane IS NULL THEN e.seq ELSE 0 END
                    AND t.seq = e.seq AND t.due IS NOT NULL"
                    .to_owned(),
            ),
            wait: Some("t.lane = e.lane AND t.seq = e.seq".to_owned()),
            aside: by_number(),
            dead: by_number(),
            ended: by_number(),
        }
    }

    /// Everything that may be in these states, unsettled or dead.
    pub(super) fn through(states: &[EventState]) -> Self {
        let waits = states
            .iter()
            .any(|state| matches!(state, EventState::Waiting | EventState::Retrying));
        let is_unsettled = states.iter().any(|state| state.is_unsettled());
        let of_wait = match states.contains(&EventState::Waiting) {
            true => NUMBERS.to_owned(),
            // The condition of an index.
            false => format!("{NUMBERS} AND (t.is_tried OR t.crashes > 0)"),
        };
        let is_dead = states.contains(&EventState::Dead);
        Self {
            head: is_unsettled.then(|| format!("{NUMBERS} AND t.due IS NOT NULL")),
            wait: waits.then_some(of_wait),
            aside: waits.then(|| NUMBERS.to_owned()),
            dead: is_dead.then(|| NUMBERS.to_owned()),
            ended: None,
        }
    }

    /// What may be in these unsettled states of a chat, by the parameters of its lanes at all routes, its lane and its id:
    /// what is in the line of one of the lanes, or stands in none.
    pub(super) fn of_chat(states: &[EventState], lanes: &str, lane: &str, chat: &str) -> Self {
        let all = Self::through(states);
        let in_lane = format!("t.lane = ANY ({lanes})");
        Self {
            head: all.head.map(|_| {
                format!(
                    "(
                        {in_lane} AND t.own = 0
                        OR t.lane = 0 AND t.own = ANY (ARRAY(
                            SELECT e.seq FROM {{schema}}.events AS e
                            WHERE e.chat_lane = {lane} AND e.chat = {chat} AND e.lane IS NULL
                        ))
                    ) AND {NUMBERS} AND t.due IS NOT NULL"
                )
            }),
            wait: all.wait.map(|_| format!("{in_lane} AND {NUMBERS}")),
            aside: all.aside.map(|_| format!("{in_lane} AND {NUMBERS}")),
            dead: None,
            ended: None,
        }
    }

    /// Everything that is settled and not dead.
    pub(super) fn ended() -> Self {
        Self {
            ended: Some(NUMBERS.to_owned()),
            ..Self::default()
        }
    }

    /// A query for the places: number, state, when it was settled, when it is due, failures, kind. `rest` is the rest of
    /// the query for each table, in which `s` is the place: it must be there that a query is limited, for the planner to
    /// use its index.
    pub(super) fn places(&self, rest: &str) -> String {
        let place = |table: &str, found: &str, state: &str, at: &str, due: &str| {
            let rest = rest.replace("s.state", state).replace("s.kind", "t.kind");
            let kind = match table {
                "ended" => "NULL::integer",
                _ => "t.kind",
            };
            format!(
                "(
                    SELECT t.seq, {state} AS state, {at}::bigint AS at, {due}::bigint AS due, t.failures, {kind} AS kind
                    FROM {{schema}}.{table} AS t WHERE {found}{rest}
                )"
            )
        };
        let unsettled = |table: &str, fence: &str, found: &str| {
            let due = format!("CASE WHEN t.due > {NOW} AND {fence} IS NULL THEN t.due END");
            place(table, found, &state(fence), "NULL", &due)
        };
        let dead = "'dead'::{schema}.event_state";
        let places = [
            self.head
                .as_ref()
                .map(|found| unsettled("head", "t.fence", found)),
            self.wait
                .as_ref()
                .map(|found| unsettled("wait", NO_FENCE, found)),
            self.aside
                .as_ref()
                .map(|found| unsettled("aside", NO_FENCE, found)),
            self.dead
                .as_ref()
                .map(|found| place("dead", found, dead, "t.at", "NULL")),
            self.ended
                .as_ref()
                .map(|found| place("ended", found, "t.state", "t.at", "NULL")),
        ];
        let places: Vec<_> = places.into_iter().flatten().collect();
        places.join(" UNION ALL ")
    }
}
