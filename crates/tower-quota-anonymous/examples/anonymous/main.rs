//! Anonymous callers with individual quotas: an issuer, an origin with two instances, and clients in one program.
//!
//! ```sh
//! cargo run --package tower-quota-anonymous --example anonymous
//! ```
//!
//! Prints each message: a rejection by address with a challenge, the issuance of a credential, requests with tokens, a
//! request that the client withholds because no tokens remain, and a spent token that the other instance rejects.
//!
//! With `-- --serve`, the servers keep running, and the program prints `curl` commands for each message. `PORT` sets
//! the port of the issuer; the origin uses the next two ports. With 0, free ports are used. `REDIS_URL` sets the store
//! for spent tokens and limits; by default, they are in memory.

mod callers;
mod servers;

use std::{
    env,
    error::Error,
    io::{Write, stdout},
};

use http::{HeaderMap, StatusCode, header};
use tokio::net::TcpListener;
use tower::ServiceExt;
use tower_quota_anonymous::{Challenge, Directory, Issuer, TokenClientError, token_to_header_value};

use self::{
    callers::{Wire, asked_for, client, get, hex, message, unspent_token},
    servers::{ADDRESS, LIMIT},
};

pub(crate) use self::servers::Site;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let site = Site::start(port, env::var("REDIS_URL").ok()).await?;
    let mut out = stdout();
    tell(&site, &mut out).await?;
    if env::args().any(|argument| argument == "--serve") {
        show_messages(&site, &mut out).await?;
        site.serve().await?;
    }
    Ok(())
}

pub(crate) async fn listen(port: u16) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    Ok(listener.map_err(|error| format!("port {port}: {error}; PORT sets another one"))?)
}

/// Sends and prints the requests of the tour.
pub(crate) async fn tell(site: &Site, out: &mut impl Write) -> Result<(), Failure> {
    writeln!(out, "Issuer: http://{}", site.issuer)?;
    writeln!(out, "Origin: http://{} and http://{}", site.origins[0], site.origins[1])?;
    writeln!(out, "Spent tokens: {}", site.store)?;

    writeln!(out, "\nWithout a token, an address has {ADDRESS} requests an hour:")?;
    let wire = Wire::new("anybody");
    for _ in 0..ADDRESS {
        wire.clone().oneshot(get(&site.origins[0])?).await?;
    }
    let rejected = wire.clone().oneshot(get(&site.origins[0])?).await?;
    wire.write(out)?;
    describe(rejected.headers(), out)?;

    writeln!(
        out,
        "\nBehind the same address, Alice and Bob log in at the issuer and go on:"
    )?;
    for login in ["alice", "bob"] {
        spend_all(site, login, out).await?;
    }
    writeln!(out, "\nAnother credential of the same day:")?;
    let wire = Wire::new("alice").with_login("alice");
    let again = wire.clone().oneshot(asked_for(site)?).await?;
    wire.write(out)?;
    expect(again.status(), StatusCode::TOO_MANY_REQUESTS)?;

    writeln!(out, "\nA token passes once, whichever instance it is sent to:")?;
    replay(site, out).await
}

/// Sends requests until the client has no tokens left.
async fn spend_all(site: &Site, login: &'static str, out: &mut impl Write) -> Result<(), Failure> {
    let wire = Wire::new(login);
    let client = client(site, login, &wire)?;
    for _ in 0..LIMIT {
        let passed = client.clone().oneshot(get(&site.origins[0])?).await?;
        expect(passed.status(), StatusCode::OK)?;
    }
    let answer = client.oneshot(get(&site.origins[0])?).await;
    wire.write(out)?;
    match answer {
        Err(TokenClientError::LimitReached { .. }) => {
            Ok(writeln!(out, "  {login}: no token is left, and no more is sent")?)
        }
        answer => Err(format!("the limit has no end: {}", answer?.status()).into()),
    }
}

/// Sends one token to both instances.
async fn replay(site: &Site, out: &mut impl Write) -> Result<(), Failure> {
    let token = unspent_token(site, "carol").await?;
    let wire = Wire::new("carol");
    for (origin, status) in [
        (0, StatusCode::OK),
        (1, StatusCode::TOO_MANY_REQUESTS),
        (0, StatusCode::TOO_MANY_REQUESTS),
    ] {
        let mut request = get(&site.origins[origin])?;
        request
            .headers_mut()
            .insert(header::AUTHORIZATION, token_to_header_value(&token));
        expect(wire.clone().oneshot(request).await?.status(), status)?;
    }
    wire.write(out)
}

/// Prints the fields of a rejection and the contents of its challenge.
fn describe(headers: &HeaderMap, out: &mut impl Write) -> Result<(), Failure> {
    for name in ["retry-after", "ratelimit-policy", "www-authenticate"] {
        for value in headers.get_all(name) {
            let value = value.to_str()?;
            let end = if value.len() > 100 { "…" } else { "" };
            writeln!(out, "    {name}: {}{end}", &value[..value.len().min(100)])?;
        }
    }
    let challenges = Challenge::from_headers(headers);
    let challenge = challenges.first().ok_or("the rejection has no challenge")?;
    let asked = challenge.token_challenge()?;
    let profile = asked.profile().ok_or("a challenge of an unknown type")?;
    let origins: Vec<_> = asked.origins().collect();
    let limit = challenge.rate_limit().unwrap_or_default();
    writeln!(
        out,
        "    The challenge asks for a token of {} by the issuer {}",
        profile.name(),
        asked.issuer_name()
    )?;
    writeln!(
        out,
        "    for {}: {limit} in each window for each credential.",
        origins.join(" and ")
    )?;
    Ok(())
}

fn expect(status: StatusCode, expected: StatusCode) -> Result<(), Failure> {
    match status == expected {
        true => Ok(()),
        false => Err(format!("the status is {status}, not {expected}").into()),
    }
}

/// Prints commands that send each of the messages again.
async fn show_messages(site: &Site, out: &mut impl Write) -> Result<(), Failure> {
    let (issuer, [first, second]) = (&site.issuer, &site.origins);
    let token = token_to_header_value(&unspent_token(site, "dave").await?);
    let token = token.to_str()?;
    let (path, media_type, request) = (Directory::PATH, Issuer::REQUEST_TYPE, hex(&message(site)?));
    writeln!(out, "\nThe keys of the issuer:\n  curl -i http://{issuer}{path}")?;
    writeln!(out, "A challenge:\n  curl -i http://{first}/")?;
    writeln!(
        out,
        "A request for a credential of Erin, and the head of the response; the fifth time 429:"
    )?;
    writeln!(out, "  echo {request} | xxd -r -p |")?;
    writeln!(
        out,
        "    curl -s -D - -o /dev/null --data-binary @- -H 'content-type: {media_type}' \\"
    )?;
    writeln!(out, "    -H 'authorization: Bearer erin' {}", asked_for(site)?.uri())?;
    writeln!(
        out,
        "A token that is not spent yet; the second time, and at the other instance, 429:"
    )?;
    for origin in [first, second] {
        writeln!(
            out,
            "  curl -i -H '{}: {token}' http://{origin}/",
            header::AUTHORIZATION
        )?;
    }
    Ok(())
}
