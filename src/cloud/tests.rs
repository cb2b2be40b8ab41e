//! Signed URLs against what the services publish and what their own libraries make.

use super::*;

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// 2026-01-02T03:04:05Z
const NOW: u64 = 1_767_323_045;

fn wish(verb: Verb, object: &str) -> Wish<'_> {
    Wish { verb, object, cache_key: "", max_size: 0, now: at(NOW), valid: Duration::from_secs(3600) }
}

fn s3() -> S3 {
    S3 {
        bucket: "bucket".into(),
        region: "eu-west-1".into(),
        access_key: "AKIAIOSFODNN7EXAMPLE".into(),
        secret_key: Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
        dual_stack: true,
        ..S3::default()
    }
}

/// The URL up to the query, and the signature.
fn ends(link: &Link) -> (&str, &str) {
    let (place, query) = link.url.reveal().split_once('?').unwrap();
    (place, query.rsplit_once("Signature=").unwrap().1)
}

#[test]
fn the_example_of_amazons_manual_comes_out() {
    // "Authenticating Requests: Using Query Parameters", whose host is the global one.
    let s3 = S3 { region: "us-east-1".into(), ..s3() };
    let dialect = v4::Dialect {
        algorithm: "AWS4-HMAC-SHA256",
        prefix: "Amz",
        scope: "us-east-1/s3/aws4_request".into(),
        credential: s3.access_key.clone(),
        session_token: String::new(),
    };
    let wish = Wish { now: at(1_369_353_600), valid: Duration::from_secs(86_400), ..wish(Verb::Get, "test.txt") };
    let place = ("https", "examplebucket.s3.amazonaws.com", "/test.txt");
    let seal = |day: &str, text: &str| Ok::<_, ()>(s3.seal(day, text));
    let url = v4::presign(&dialect, &wish, place, &[], seal).unwrap();
    assert_eq!(
        url,
        "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256\
         &X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z\
         &X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
         &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    );
}

#[test]
fn s3_urls_are_those_of_amazons_own_library() {
    // Made by boto3 1.44.8 with the same keys, names and time.
    let object = "runner/abc/project/7/k main+ü";
    let path = "/runner/abc/project/7/k%20main%2B%C3%BC";
    let check = |s3: &S3, wish: Wish<'_>, host: &str, signature: &str| {
        let link = s3.sign(&wish);
        assert_eq!(ends(&link), (format!("{host}{path}").as_str(), signature));
        link
    };
    let dual = "https://bucket.s3.dualstack.eu-west-1.amazonaws.com";
    let get = wish(Verb::Get, object);
    check(&s3(), get, dual, "1a8b408ba37612e1be19a5b67c3d8058213dba495500ce309ab53238177b5669");
    let head = wish(Verb::Head, object);
    check(&s3(), head, dual, "6fe8ce27a7baef160ffca9e0ed5b6783d9ca4ed28ac1c5560c8d48268e6fd1d3");
    let token = S3 { session_token: Secret::new("tok/en+="), ..s3() };
    check(&token, get, dual, "caa4291971130a568fe68ea79edb4707a435cdbb9d5dd928b5fe11787284dd8f");
    let kms = Encryption { algorithm: "aws:kms".into(), key_id: "arn:aws:kms:x".into() };
    let encrypted = S3 { encryption: Some(kms), ..s3() };
    let put = Wish { cache_key: "k main+", ..wish(Verb::Put, object) };
    let link = check(&encrypted, put, dual, "6a940383d992950699945015f765af548eb7f2835bfc4134f245c2ba34e2f451");
    assert_eq!(
        link.headers.iter().map(|(k, v)| format!("{k}: {v}")).collect::<Vec<_>>(),
        [
            "x-amz-meta-cachekey: k main+",
            "x-amz-server-side-encryption: aws:kms",
            "x-amz-server-side-encryption-aws-kms-key-id: arn:aws:kms:x"
        ]
    );
    let dots = S3 { bucket: "a.b".into(), ..s3() };
    check(
        &dots,
        get,
        "https://s3.dualstack.eu-west-1.amazonaws.com/a.b",
        "355b127f05a852575e2c4e76b8efad80172296ce6d58d6747d855fe2cfe97f71",
    );
    let own = S3 { server: "127.0.0.1:9000".into(), insecure: true, region: "us-east-1".into(), ..s3() };
    check(
        &own,
        get,
        "http://127.0.0.1:9000/bucket",
        "bc3360556e2309d0a7b911aac6ec011f048de3e5f309e3ae6d95e36fae54140d",
    );
    let fast = S3 { accelerate: true, ..s3() };
    check(
        &fast,
        get,
        "https://bucket.s3-accelerate.dualstack.amazonaws.com",
        "169abca2e9826cc92a0151f306c70a7cb6f5b65f369544df771f299d909515ac",
    );
    let china = S3 { region: "cn-north-1".into(), dual_stack: false, ..s3() };
    check(
        &china,
        get,
        "https://bucket.s3.cn-north-1.amazonaws.com.cn",
        "ac52f04305f61ad3c0c3b14ae2b947b662d9ad86ee7735529007dbb89546763b",
    );
}

#[test]
fn a_bucket_stands_in_the_host_where_that_is_known_to_work() {
    for (server, style, want) in [
        ("minio.example:443", None, "https://minio.example/bucket/x"),
        ("minio.example:9000", Some(false), "https://bucket.minio.example:9000/x"),
        ("storage.googleapis.com", None, "https://bucket.storage.googleapis.com/x"),
        ("s3.eu-west-1.amazonaws.com", None, "https://bucket.s3.eu-west-1.amazonaws.com/x"),
        ("s3.eu-west-1.amazonaws.com", Some(true), "https://s3.eu-west-1.amazonaws.com/bucket/x"),
        ("s3.amazonaws.com", Some(true), "https://s3.dualstack.eu-west-1.amazonaws.com/bucket/x"),
    ] {
        let s3 = S3 { server: server.into(), path_style: style, ..s3() };
        assert_eq!(ends(&s3.sign(&wish(Verb::Get, "x"))).0, want, "{server} {style:?}");
    }
}

#[test]
fn google_urls_are_those_of_its_published_vectors() {
    // storage/v1/v4_signatures.json of googleapis/conformance-tests, with its key.
    let gcs = |bucket: &str| Gcs {
        bucket: bucket.into(),
        universe: String::new(),
        access_id: "test-iam-credentials@dummy-project-id.iam.gserviceaccount.com".into(),
        private_key: Secret::new(include_str!("../../tests/data/google-signing-test.pem")),
    };
    for (bucket, object, time, expires, want) in [
        (
            "test-bucket",
            "test-object",
            1_549_011_600,
            10,
            "https://storage.googleapis.com/test-bucket/test-object?X-Goog-Algorithm=GOOG4-RSA-SHA256\
             &X-Goog-Credential=test-iam-credentials%40dummy-project-id.iam.gserviceaccount.com%2F20190201%2Fauto\
             %2Fstorage%2Fgoog4_request&X-Goog-Date=20190201T090000Z&X-Goog-Expires=10&X-Goog-SignedHeaders=host\
             &X-Goog-Signature=95e6a13d43a1d1962e667f17397f2b80ac9bdd1669210d5e08e0135df9dff4e56113485dbe429ca2266487b9\
             d1796ebdee2d7cf682a6ef3bb9fbb4c351686fba90d7b621cf1c4eb1fdf126460dd25fa0837dfdde0a9fd98662ce60844c458448fb\
             2b352c203d9969cb74efa4bdb742287744a4f2308afa4af0e0773f55e32e92973619249214b97283b2daa14195244444e33f938138\
             d1e5f561088ce8011f4986dda33a556412594db7c12fc40e1ff3f1bedeb7a42f5bcda0b9567f17f65855f65071fabb88ea12371877\
             f3f77f10e1466fff6ff6973b74a933322ff0949ce357e20abe96c3dd5cfab42c9c83e740a4d32b9e11e146f0eb3404d2e975896f74",
        ),
        (
            "test-bucket2",
            "test-object2",
            1_549_011_600,
            10,
            "https://storage.googleapis.com/test-bucket2/test-object2?X-Goog-Algorithm=GOOG4-RSA-SHA256\
             &X-Goog-Credential=test-iam-credentials%40dummy-project-id.iam.gserviceaccount.com%2F20190201%2Fauto\
             %2Fstorage%2Fgoog4_request&X-Goog-Date=20190201T090000Z&X-Goog-Expires=10&X-Goog-SignedHeaders=host\
             &X-Goog-Signature=36e3d58dfd3ec1d2dd2f24b5ee372a71e811ffaa2162a2b871d26728d0354270bc116face87127532969c4a3\
             967ed05b7309af741e19c7202f3167aa8c2ac420b61417d6451442bb91d7c822cd17be8783f01e05372769c88913561d27e6660dd8\
             259f0081a71f831be6c50283626cbf04494ac10c394b29bb3bce74ab91548f58a37118a452693cf0483d77561fc9cac8f1765d2c72\
             4994cca46a83517a10157ee0347a233a2aaeae6e6ab5e204ff8fc5f54f90a3efdb8301d9fff5475d58cd05b181affd657f48203f4f\
             b133c3a3d355b8eefbd10d5a0a5fd70d06e9515460ad74e22334b2cba4b29cae4f6f285cdb92d8f3126d7a1479ca3bdb69c207d860",
        ),
    ] {
        let wish = Wish { now: at(time), valid: Duration::from_secs(expires), ..wish(Verb::Get, object) };
        assert_eq!(gcs(bucket).sign(&wish).unwrap().url.reveal(), want);
    }
    let put = gcs("b").sign(&Wish { max_size: 5, cache_key: "ü", ..wish(Verb::Put, "a/b c") }).unwrap();
    assert_eq!(ends(&put).0, "https://storage.googleapis.com/b/a/b%20c");
    let headers: Vec<String> = put.headers.iter().map(|(k, v)| format!("{k}: {v}")).collect();
    assert_eq!(
        headers,
        ["content-type: application/octet-stream", "x-goog-content-length-range: 0,5", "x-goog-meta-cachekey: %C3%BC"]
    );
}

#[test]
fn azure_urls_are_those_of_microsofts_own_library() {
    // Made by azure-storage-blob 12.31.1 for the service version that we name, with the emulator's key,
    // which Microsoft publishes.
    let azure = Azure {
        account: "devstoreaccount1".into(),
        key: Secret::new("Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="),
        container: "cont".into(),
        domain: "blob.core.windows.net".into(),
    };
    for (verb, letter, signature) in [
        (Verb::Get, 'r', "rkwHchXlA5CUf%2F%2BtKmYHA1n99uCTqsStlV%2BEgbmWDjU%3D"),
        (Verb::Put, 'w', "%2B9TcedZAGk0y8BD7gBuFG%2F66FisWgiDimJAEKJjUeXY%3D"),
    ] {
        let object = "dir/a b/project/7/k-main";
        let link = azure.sign(&Wish { now: at(NOW + 3600), ..wish(verb, object) }).unwrap();
        assert_eq!(
            link.url.reveal(),
            format!(
                "https://devstoreaccount1.blob.core.windows.net/cont/dir/a%20b/project/7/k-main?st=2026-01-02T03%3A04%3A05Z\
                 &se=2026-01-02T05%3A04%3A05Z&sp={letter}&spr=https&sv=2020-12-06&sr=b&sig={signature}"
            )
        );
    }
}

#[test]
fn keys_that_cannot_sign_are_told_in_words() {
    let gcs = |key: &str| Store::Gcs(Gcs { private_key: Secret::new(key), ..Gcs::default() }).check().unwrap_err();
    assert_eq!(gcs("x"), "the private key is no PEM text");
    assert_eq!(gcs("-----BEGIN PRIVATE KEY-----\n?\n-----END PRIVATE KEY-----"), "the private key is no base64");
    assert!(
        gcs("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----")
            .starts_with("the private key cannot be used")
    );
    assert!(gcs("-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----").contains("RSA"));
    let azure = Store::Azure(Azure { key: Secret::new("*"), ..Azure::default() });
    assert_eq!(azure.check().unwrap_err(), "the AccountKey is no base64");
}
