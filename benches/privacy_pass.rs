//! Anonymous credentials: what each step takes of one core, in both profiles.
//!
//!     cargo bench --features privacy-pass --bench privacy_pass
//!
//! `verify` is what an origin does for each token, `issue` what an issuer does for each credential; the other steps are the
//! client's. All are the functions of the scheme alone, without HTTP and without threads: so many a second and core.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tower_quota::privacy_pass::{CredentialRequest, IssuerKey, Profile};

const REQUEST_CONTEXT: &[u8] = b"issuer.example";
const PRESENTATION_CONTEXT: &[u8] = b"window 7";
const LIMIT: u32 = 1_000;

fn steps(criterion: &mut Criterion) {
    for profile in Profile::ALL {
        let key = IssuerKey::generate(profile).expect("there are random numbers");
        let request = || CredentialRequest::new(key.public_key(), REQUEST_CONTEXT).expect("there are random numbers");
        let asked = request();
        let response = key.issue(asked.as_bytes()).expect("the request is valid");
        let credential = asked.finalize(&response).expect("the response is valid");
        let present = || credential.present(PRESENTATION_CONTEXT, LIMIT - 1, LIMIT);
        let presentation = present().expect("the nonce is below the limit");
        let verify = || {
            let bytes = presentation.as_bytes();
            key.verify(bytes, REQUEST_CONTEXT, PRESENTATION_CONTEXT, LIMIT - 1, LIMIT)
        };

        let mut group = criterion.benchmark_group(format!("{profile:?}"));
        group.sample_size(50).throughput(Throughput::Elements(1));
        group.bench_function("verify", |bencher| bencher.iter(verify));
        group.bench_function("issue", |bencher| bencher.iter(|| key.issue(asked.as_bytes())));
        group.bench_function("request", |bencher| bencher.iter(request));
        group.bench_function("finalize", |bencher| bencher.iter(|| asked.finalize(&response)));
        group.bench_function("present", |bencher| bencher.iter(present));
        group.finish();
    }
}

criterion_group!(benches, steps);
criterion_main!(benches);
