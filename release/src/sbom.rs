//! A bill of materials in the format CycloneDX 1.5: every package that is compiled into the program.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use bitnet_workspace::{cargo, output};
use serde_json::{Value, json};

/// The package of the program.
const PROGRAM: &str = "bitnet-cli";

/// The bill of the program `bitnet`, as cargo resolves it for all platforms.
pub(crate) fn of_program() -> Result<String> {
    let metadata = output(cargo(&["metadata", "--format-version", "1", "--locked"]))?;
    let bill = bill(&serde_json::from_slice(&metadata)?, PROGRAM)?;
    Ok(serde_json::to_string_pretty(&bill)?)
}

/// The bill of a package, from what `cargo metadata` prints.
fn bill(metadata: &Value, program: &str) -> Result<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages = list(&metadata["packages"]);
    let by_id: BTreeMap<&str, &Value> =
        packages.iter().filter_map(|package| Some((package["id"].as_str()?, package))).collect();
    let nodes = list(&metadata["resolve"]["nodes"]);
    let used: BTreeMap<&str, Vec<&str>> =
        nodes.iter().filter_map(|node| Some((node["id"].as_str()?, needed(node)))).collect();
    let root = packages.iter().find(|package| package["name"] == program);
    let root = root.and_then(|package| package["id"].as_str()).context("the workspace has the program")?;
    let (mut reached, mut waiting) = (BTreeSet::from([root]), vec![root]);
    while let Some(id) = waiting.pop() {
        for &next in used.get(id).into_iter().flatten() {
            if reached.insert(next) {
                waiting.push(next);
            }
        }
    }
    ensure!(reached.len() > 1, "{program} depends on nothing: cargo metadata was not understood");
    let component = |id: &&str| component(by_id.get(id).copied());
    let components: Vec<Value> =
        reached.iter().filter(|&&id| id != root).map(component).collect::<Result<_>>()?;
    let reference = |id: &&str| by_id.get(*id).map_or(Value::Null, |package| json!(purl(package)));
    let dependencies: Vec<Value> = reached
        .iter()
        .map(|id| json!({"ref": reference(id), "dependsOn": used.get(id).into_iter().flatten().map(reference).collect::<Vec<_>>()}))
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(&root)?},
        "components": components,
        "dependencies": dependencies,
    }))
}

/// The packages that a package needs to be built and to run, without those of its tests.
fn needed(node: &Value) -> Vec<&str> {
    let dependencies = node["deps"].as_array().into_iter().flatten();
    let counts = |dependency: &&Value| {
        dependency["dep_kinds"].as_array().into_iter().flatten().any(|kind| kind["kind"] != "dev")
    };
    dependencies.filter(counts).filter_map(|dependency| dependency["pkg"].as_str()).collect()
}

fn component(package: Option<&Value>) -> Result<Value> {
    let package = package.context("a dependency has a package")?;
    let mut component = json!({
        "type": if package["name"] == PROGRAM { "application" } else { "library" },
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "purl": purl(package),
    });
    if let Some(licence) = package["license"].as_str() {
        // Old manifests separate alternatives by a slash.
        component["licenses"] = json!([{"expression": licence.replace('/', " OR ").replace("  ", " ")}]);
    }
    Ok(component)
}

/// The package's name in the form that bills of materials share.
fn purl(package: &Value) -> String {
    let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_lists_what_is_compiled_into_the_program_and_no_tool_of_the_tests() {
        let bill: Value = serde_json::from_str(&of_program().unwrap()).unwrap();
        assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&json!("CycloneDX"), &json!("1.5")));
        assert_eq!(bill["metadata"]["component"]["name"], PROGRAM);
        let components = bill["components"].as_array().unwrap();
        let find = |name: &str| components.iter().find(|component| component["name"] == name);
        let half = find("half").unwrap();
        assert!(half["purl"].as_str().unwrap().starts_with("pkg:cargo/half@"), "{half}");
        assert_eq!(half["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert!(find("bitnet-kernels").is_some() && find("tokio").is_some());
        for of_tests in ["proptest", "bitnet-tests", "bitnet-ptxsim", "xtask"] {
            assert!(find(of_tests).is_none(), "{of_tests}");
        }
        let references: BTreeSet<&str> =
            components.iter().map(|component| component["bom-ref"].as_str().unwrap()).collect();
        assert_eq!(references.len(), components.len());
        for dependency in bill["dependencies"].as_array().unwrap() {
            for needed in dependency["dependsOn"].as_array().unwrap() {
                assert!(references.contains(needed.as_str().unwrap()), "{needed}");
            }
        }
    }
}
