//! The tables of docs/SCALE.md are the results of the model for the measured figures of that page.

#[path = "../../benches/scale/model.rs"]
mod model;

use std::fs;

fn page() -> String {
    fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/SCALE.md")).unwrap()
}

#[test]
fn the_tables_of_the_page_about_scale_are_computed_from_its_inputs() {
    let page = page();
    let (_, rest) = page.split_once("<!-- computed -->\n\n").unwrap();
    let (tables, _) = rest.split_once("<!-- end -->").unwrap();
    let computed = model::Inputs::read(&page).unwrap().tables();
    assert!(tables == computed, "the page is to say:\n\n{computed}");
}

#[test]
fn an_input_that_is_missing_is_named() {
    let page = page().replace(model::NAMES[2], "something else");
    let error = model::Inputs::read(&page).err().unwrap();
    assert_eq!(
        error,
        format!("there is no row for {:?} with a number", model::NAMES[2])
    );
}
