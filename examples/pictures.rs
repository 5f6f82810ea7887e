//! Redraws the charts in `docs/pictures` from the results in that folder.
//!
//! ```sh
//! cargo run --example pictures
//! ```
//!
//! Run this after a change to the drawing code. The commands that produce the results are in `docs/pictures/README.md`.

mod results;

use std::{error::Error, fs, path::Path};

use self::results::pictures;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pictures"));
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let results = serde_json::from_str(&fs::read_to_string(&path)?)?;
            let picture = path.with_extension("svg");
            fs::write(&picture, pictures::draw(&results)?)?;
            println!("{}", picture.display());
        }
    }
    Ok(())
}
