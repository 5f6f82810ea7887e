//! The seeds of the fuzz targets, run without a fuzzer.

use std::{fs, path::Path};

#[allow(unreachable_pub, reason = "to the fuzz targets it is another crate")]
#[path = "../../fuzz/src/lib.rs"]
mod targets;

fn run_over_the_seeds_of(target: &str, run: fn(&[u8])) {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let mut inputs: Vec<Vec<u8>> = fs::read_dir(seeds)
        .unwrap()
        .map(|seed| fs::read(seed.unwrap().path()).unwrap())
        .collect();
    assert!(!inputs.is_empty());

    // Every prefix is cut off in the middle of something.
    let longest = inputs.iter().max_by_key(|input| input.len()).unwrap().clone();
    inputs.extend((0..longest.len()).map(|end| longest[..end].to_vec()));
    inputs.iter().for_each(|input| run(input));
}

#[test]
fn the_seeds_of_ratelimit_fields_hold() {
    run_over_the_seeds_of("rate_limit", targets::rate_limit);
}

#[test]
fn the_seeds_of_ratelimit_policy_fields_hold() {
    run_over_the_seeds_of("rate_limit_policy", targets::rate_limit_policy);
}

#[test]
fn the_seeds_of_retry_after_fields_hold() {
    run_over_the_seeds_of("retry_after", targets::retry_after);
}

#[test]
fn the_seeds_of_forwarded_fields_hold() {
    run_over_the_seeds_of("forwarded", targets::forwarded);
}

#[test]
fn the_seeds_of_x_forwarded_for_fields_hold() {
    run_over_the_seeds_of("x_forwarded_for", targets::x_forwarded_for);
}

#[test]
fn the_seeds_of_fields_with_one_address_hold() {
    run_over_the_seeds_of("one_address", targets::one_address);
}

#[test]
fn the_seeds_of_timeouts_of_grpc_calls_hold() {
    run_over_the_seeds_of("grpc_timeout", targets::grpc_timeout);
}

#[test]
fn the_seeds_of_hosts_hold() {
    run_over_the_seeds_of("host", targets::host);
}

#[test]
fn the_seeds_of_heads_of_responses_hold() {
    run_over_the_seeds_of("response", targets::response);
}

#[test]
fn the_seeds_of_problems_hold() {
    run_over_the_seeds_of("problem", targets::problem);
}

#[test]
fn the_seeds_of_documents_of_rules_hold() {
    run_over_the_seeds_of("rules_document", targets::rules_document);
}

#[test]
fn the_seeds_of_token_challenges_hold() {
    run_over_the_seeds_of("token_challenge", targets::token_challenge);
}

#[test]
fn the_seeds_of_tokens_hold() {
    run_over_the_seeds_of("token", targets::token);
}

#[test]
fn the_seeds_of_token_directories_hold() {
    run_over_the_seeds_of("token_directory", targets::token_directory);
}

#[test]
fn the_seeds_of_requests_for_credentials_hold() {
    run_over_the_seeds_of("credential_request", targets::credential_request);
}

#[test]
fn the_seeds_of_responses_with_credentials_hold() {
    run_over_the_seeds_of("credential_response", targets::credential_response);
}

#[test]
fn the_seeds_of_presentations_hold() {
    run_over_the_seeds_of("presentation", targets::presentation);
}

/// A target that is not declared would never run.
#[test]
fn every_folder_of_seeds_belongs_to_a_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let mut folders = 0;
    for folder in fs::read_dir(root.join("seeds")).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        assert!(
            manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")),
            "{name}"
        );
        folders += 1;
    }
    assert_eq!(manifest.matches("[[bin]]").count(), folders);
}
