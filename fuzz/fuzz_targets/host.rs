#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tower_quota_fuzz::host(input));
