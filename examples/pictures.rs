//! Draws the pictures of `docs/pictures` again, each from the results that lie beside it.
//!
//! ```sh
//! cargo run --example pictures
//! ```
//!
//! Needed after a change to the way in which they are drawn. The results come from programs that measure; the commands are
//! in `docs/pictures/README.md`.

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
