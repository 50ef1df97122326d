//! Connection strings, as other tools write them. What they say and the receiver cannot do is refused by its name, and no
//! error shows a value, which may be a password.

/// The parameters that decide how the receiver connects to PostgreSQL, beside those of its hosts.
#[cfg(feature = "postgres")]
const TAKEN: [&str; 15] = [
    "application_name",
    "dbname",
    "options",
    "password",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

/// Those that change nothing here: with these values, or without any here with each.
#[cfg(feature = "postgres")]
const LEFT_OUT: [(&str, &[&str]); 15] = [
    ("channel_binding", &["disable", "prefer"]),
    ("client_encoding", &["UTF8", "auto", "utf8"]),
    ("connect_timeout", &[]),
    ("currentSchema", &["public"]),
    ("fallback_application_name", &[]),
    ("gssencmode", &["disable", "prefer"]),
    ("keepalives", &[]),
    ("keepalives_count", &[]),
    ("keepalives_idle", &[]),
    ("keepalives_interval", &[]),
    ("pgbouncer", &[]),
    ("schema", &["public"]),
    ("sslsni", &[]),
    ("target_session_attrs", &["any", "primary", "read-write"]),
    ("tcp_user_timeout", &[]),
];

/// The names and values of parameters, as they are written.
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub(crate) fn pairs(parameters: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = parameters.split('&').filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').unwrap_or((part, "")))
}

/// The error for a parameter.
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub(crate) fn unknown(name: &str, example: &str) -> String {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let name = match name.len() <= 40 && name.bytes().all(is_name) {
        true => format!("`{name}`"),
        false => "a parameter".to_owned(),
    };
    format!(
        "{name} behind the `?` of the database's URL is nothing that the receiver can do: remove it, as in `{example}`"
    )
}

/// The parts of a URL behind its scheme.
#[cfg(any(feature = "postgres", feature = "redis"))]
struct Parts<'a> {
    authority: &'a str,
    path: &'a str,
    parameters: &'a str,
}

#[cfg(any(feature = "postgres", feature = "redis"))]
impl<'a> Parts<'a> {
    /// Splits a URL as all programs do.
    fn of(url: &'a str, example: &str) -> Result<Self, String> {
        let Some((_, rest)) = url.split_once("://") else {
            return Err(format!(
                "the database's URL lacks `//`: use one such as `{example}`"
            ));
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if rest.contains('#') || rest.contains('@') && !authority.contains('@') {
            return Err(format!(
                "the database's URL has a `/`, `?` or `#` in its password, where these have a meaning: percent-encode them \
                 (`%2F`, `%3F`, `%23`), as in `{example}`"
            ));
        }
        let (path, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        Ok(Self {
            authority,
            path,
            parameters,
        })
    }

    /// What is in front of the hosts, with its `@`, and the hosts.
    fn login_and_hosts(&self) -> (&'a str, &'a str) {
        let at = self.authority.rfind('@').map_or(0, |at| at + 1);
        self.authority.split_at(at)
    }
}

/// For each host, a URL that the driver of PostgreSQL understands as a whole: it logs the parameters that it does not, with
/// their values.
#[cfg(feature = "postgres")]
pub(crate) fn postgres(url: &str) -> Result<Vec<String>, String> {
    const EXAMPLE: &str = "postgres://USER:PASSWORD@HOST:5432/DATABASE";
    let parts = Parts::of(url, EXAMPLE)?;
    let mut taken = Vec::new();
    // As libpq reads them: of each name, as many as there are hosts.
    let mut lists = Vec::new();
    for (name, value) in pairs(parts.parameters) {
        if ["host", "hostaddr", "port"].contains(&name) {
            let value = value.replace("%2C", ",").replace("%2c", ",");
            let values: Vec<_> = value.split(',').map(str::to_owned).collect();
            lists.push((name, values));
            continue;
        }
        let left_out = LEFT_OUT.iter().find(|(known, _)| *known == name);
        match left_out {
            Some((_, values)) if values.is_empty() || values.contains(&value) => {}
            Some((name, values)) => {
                return Err(format!(
                    "the receiver can do `{name}` of the database's URL only as `{}`: remove it, or set it so",
                    values.join("` or `")
                ));
            }
            None if TAKEN.contains(&name) || name.starts_with("options[") => {
                taken.push(format!("{name}={value}"));
            }
            None => return Err(unknown(name, EXAMPLE)),
        }
    }
    let (user, hosts) = parts.login_and_hosts();
    let in_front: Vec<_> = hosts.split(',').collect();
    let of_hosts = lists.iter().filter(|(name, _)| *name != "port");
    let numbers = of_hosts.map(|(_, values)| values.len());
    let all = numbers.max().unwrap_or(1).max(in_front.len());
    let is_odd = |number: usize| number != all && number != 1;
    if let Some((name, values)) = lists.iter().find(|(_, values)| is_odd(values.len())) {
        return Err(format!(
            "the database's URL has {all} hosts, and {} values of `{name}`: give as many, or one for all",
            values.len()
        ));
    }
    if is_odd(in_front.len()) || in_front.len() > 1 && in_front.contains(&"") {
        return Err("one of the hosts of the database's URL is empty".to_owned());
    }
    let url = |at: usize| {
        let host = in_front.get(at).unwrap_or(&in_front[0]);
        let of_host = lists.iter().map(|(name, values)| {
            let value = values.get(at).unwrap_or(&values[0]);
            format!("{name}={value}")
        });
        let parameters: Vec<_> = of_host.chain(taken.iter().cloned()).collect();
        let path = parts.path;
        format!("postgres://{user}{host}{path}?{}", parameters.join("&"))
    };
    Ok((0..all).map(url).collect())
}

/// A URL for Redis: a server, or several of a cluster; or sentinels, and the name that they have for the primary.
#[cfg(feature = "redis")]
pub(crate) fn redis(url: &str) -> Result<String, String> {
    const EXAMPLE: &str = "redis://USER:PASSWORD@HOST:6379/0";
    let parts = Parts::of(url, EXAMPLE)?;
    let scheme = url.split(':').next().unwrap_or_default().to_lowercase();
    let (mut path, mut taken) = (parts.path.trim_end_matches('/').to_owned(), String::new());
    let name_and_database = 1 + usize::from(scheme.ends_with(SENTINEL));
    for (name, value) in pairs(parts.parameters) {
        match name {
            // As Python writes it.
            "db" if path.matches('/').count() < name_and_database => path += &format!("/{value}"),
            "protocol" => taken = format!("?protocol={value}"),
            _ => return Err(unknown(name, EXAMPLE)),
        }
    }
    Ok(format!("{scheme}://{}{path}{taken}", parts.authority))
}

/// What is behind the scheme of a URL that names sentinels.
#[cfg(feature = "redis")]
pub(crate) const SENTINEL: &str = "+sentinel";

/// The URLs of the servers or sentinels that such a URL names.
#[cfg(feature = "redis")]
pub(crate) fn each_redis(url: &str) -> Result<Vec<String>, String> {
    const EXAMPLE: &str = "redis+sentinel://USER:PASSWORD@HOST:26379,HOST:26379/NAME/0";
    let parts = Parts::of(url, EXAMPLE)?;
    let scheme = url.split(':').next().unwrap_or_default();
    let mut path = parts.path;
    let bare = scheme.strip_suffix(SENTINEL);
    if bare.is_some() {
        let (name, database) = path
            .trim_matches('/')
            .split_once('/')
            .unwrap_or((path.trim_matches('/'), ""));
        if name.is_empty() {
            return Err(format!(
                "the database's URL lacks the name that the sentinels have for the primary: write it behind them, as in `{EXAMPLE}`"
            ));
        }
        path = database;
    }
    let (login, hosts) = parts.login_and_hosts();
    let (scheme, path) = (bare.unwrap_or(scheme), path.trim_start_matches('/'));
    let each = hosts.split(',');
    Ok(each
        .map(|host| format!("{scheme}://{login}{host}/{path}?{}", parts.parameters))
        .collect())
}

/// The URL of what libpq calls keywords and values, as in `host=localhost dbname=webhooks`. `None` if the text has none.
pub(crate) fn of_keywords(text: &str) -> Option<Result<String, String>> {
    const KEYWORDS: [&str; 6] = ["dbname", "host", "hostaddr", "password", "port", "user"];
    let (first, _) = text.split_once('=')?;
    if !KEYWORDS.contains(&first.trim()) {
        return None;
    }
    let mut parameters = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let Some((name, behind)) = rest.split_once('=') else {
            return Some(Err(
                "a keyword of the database's connection string has no value: write `host=HOST dbname=DATABASE user=USER`"
                    .to_owned(),
            ));
        };
        let (value, behind) = value(behind.trim_start());
        let escaped: String = value.bytes().map(|byte| format!("%{byte:02X}")).collect();
        // What is compared with known values stays as it is.
        let is_word = value
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.,".contains(&byte));
        let value = if is_word { value } else { escaped };
        parameters.push(format!("{}={value}", name.trim()));
        rest = behind.trim_start();
    }
    Some(Ok(format!("postgres://?{}", parameters.join("&"))))
}

/// A value of libpq, which may be in quotes, and what follows it.
fn value(text: &str) -> (String, &str) {
    let mut value = String::new();
    let is_quoted = text.starts_with('\'');
    let mut chars = text.char_indices().skip(usize::from(is_quoted));
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' => value.extend(chars.next().map(|(_, char)| char)),
            '\'' if is_quoted => return (value, &text[at + 1..]),
            char if char.is_whitespace() && !is_quoted => return (value, &text[at..]),
            char => value.push(char),
        }
    }
    (value, "")
}
