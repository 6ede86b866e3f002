//! The modules of a crate: what each defines, imports and names.

use proc_macro2::{Spacing, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, UseTree, Visibility};

/// The names of the modules from a crate's root to one of them; the root's is empty.
pub type ModulePath = Vec<String>;

/// A crate's modules, by their paths.
pub struct Crate {
    /// The name by which others import it.
    pub name: String,
    /// All its modules.
    pub modules: BTreeMap<ModulePath, Module>,
}

/// One module.
#[derive(Default)]
pub struct Module {
    /// The file that it is in.
    pub file: PathBuf,
    /// Whether it is compiled here once more, and belongs to another package (`#[path]`).
    pub borrowed: bool,
    /// The items that it defines, child modules apart.
    pub items: BTreeSet<String>,
    /// What it imports, by the name that it gives to it.
    pub imports: BTreeMap<String, Named>,
    /// What it imports everything of.
    pub globs: Vec<Named>,
    /// The paths that it names in types, expressions, patterns, attributes and macros.
    pub named: Vec<Named>,
}

/// A path as it is written down, and the line it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its segments.
    pub path: Vec<String>,
    /// The line, from 1.
    pub line: usize,
}

/// Reads the crate `name` from its root file.
///
/// # Errors
/// A file that is not there or that syn can't parse, in words.
pub fn read(name: &str, root: &Path) -> Result<Crate, String> {
    let mut modules = BTreeMap::new();
    let beside = root.parent().unwrap_or(Path::new("")).to_path_buf();
    let place = Place {
        file: root.to_path_buf(),
        children: beside,
        borrowed: false,
    };
    file_module(&place, Vec::new(), &mut modules)?;
    let name = name.to_string();
    Ok(Crate { name, modules })
}

/// Where a module is: its file, and the folder of its child modules.
struct Place {
    file: PathBuf,
    children: PathBuf,
    borrowed: bool,
}

type Modules = BTreeMap<ModulePath, Module>;

fn file_module(place: &Place, path: ModulePath, into: &mut Modules) -> Result<(), String> {
    let text = std::fs::read_to_string(&place.file)
        .map_err(|e| format!("{}: {e}", place.file.display()))?;
    let parsed = syn::parse_file(&text).map_err(|e| {
        let line = e.span().start().line;
        format!("{}:{line}: {e}", place.file.display())
    })?;
    items_module(place, path, &parsed.items, into)
}

fn items_module(
    place: &Place,
    path: ModulePath,
    items: &[Item],
    into: &mut Modules,
) -> Result<(), String> {
    let mut reader = Reader::default();
    reader.module.file.clone_from(&place.file);
    reader.module.borrowed = place.borrowed;
    for item in items {
        reader.visit_item(item);
    }
    let Reader { module, children } = reader;
    into.insert(path.clone(), module);
    for child in children {
        let mut below = path.clone();
        below.push(child.ident.to_string());
        match &child.content {
            Some((_, items)) => {
                let inner = Place {
                    file: place.file.clone(),
                    children: place.children.join(child.ident.to_string()),
                    borrowed: place.borrowed,
                };
                items_module(&inner, below, items, into)?;
            }
            None => file_module(&find(place, child)?, below, into)?,
        }
    }
    Ok(())
}

/// The file of a module that is declared by `mod name;`.
fn find(parent: &Place, child: &ItemMod) -> Result<Place, String> {
    let name = child.ident.to_string();
    let borrowed = parent.borrowed;
    if let Some(said) = path_attribute(&child.attrs) {
        let folder = parent.file.parent().unwrap_or(Path::new(""));
        let file = folder.join(&said);
        // A file named by a path has its children beside it.
        let children = file.parent().unwrap_or(Path::new("")).to_path_buf();
        return Ok(Place {
            file,
            children,
            borrowed: borrowed || said.starts_with(".."),
        });
    }
    let children = parent.children.join(&name);
    let beside = parent.children.join(format!("{name}.rs"));
    let within = children.join("mod.rs");
    let file = [beside, within].into_iter().find(|f| f.exists());
    let file = file.ok_or(format!("{}: no file of mod {name}", parent.file.display()))?;
    Ok(Place {
        file,
        children,
        borrowed,
    })
}

fn path_attribute(attrs: &[Attribute]) -> Option<String> {
    let of_path = attrs.iter().find(|a| a.path().is_ident("path"))?;
    match &of_path.meta {
        syn::Meta::NameValue(pair) => match &pair.value {
            syn::Expr::Lit(syn::ExprLit {
                lit: syn::Lit::Str(text),
                ..
            }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

/// Whether it is compiled for tests alone.
fn for_tests(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|a| {
        let syn::Meta::List(list) = &a.meta else {
            return a.path().is_ident("test");
        };
        let said = list.tokens.to_string();
        let outer = said.split_once('(').map_or(said.as_str(), |(head, _)| head);
        a.path().is_ident("cfg")
            && (said == "test" || outer.trim() == "all" && words(&said).any(|w| w == "test"))
    })
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_'))
}

/// Fills a module from its items.
#[derive(Default)]
struct Reader<'a> {
    module: Module,
    children: Vec<&'a ItemMod>,
}

impl Reader<'_> {
    fn define(&mut self, item: &Item) {
        let name = match item {
            Item::Const(i) => i.ident.to_string(),
            Item::Enum(i) => i.ident.to_string(),
            Item::Fn(i) => i.sig.ident.to_string(),
            Item::Static(i) => i.ident.to_string(),
            Item::Struct(i) => i.ident.to_string(),
            Item::Trait(i) => i.ident.to_string(),
            Item::TraitAlias(i) => i.ident.to_string(),
            Item::Type(i) => i.ident.to_string(),
            Item::Union(i) => i.ident.to_string(),
            _ => return,
        };
        self.module.items.insert(name);
    }

    fn import(&mut self, tree: &UseTree, before: &[String]) {
        let with = |ident: &syn::Ident| {
            let mut path = before.to_vec();
            path.push(ident.to_string());
            path
        };
        match tree {
            UseTree::Path(p) => self.import(&p.tree, &with(&p.ident)),
            UseTree::Name(n) => self.import_as(&with(&n.ident), None, n.ident.span()),
            UseTree::Rename(r) => {
                self.import_as(&with(&r.ident), Some(&r.rename), r.ident.span());
            }
            UseTree::Glob(g) => {
                let line = g.star_token.spans[0].start().line;
                let path = before.to_vec();
                self.module.globs.push(Named { path, line });
            }
            UseTree::Group(g) => g.items.iter().for_each(|t| self.import(t, before)),
        }
    }

    fn import_as(&mut self, path: &[String], name: Option<&syn::Ident>, span: proc_macro2::Span) {
        let mut path = path.to_vec();
        // `use a::{self}` is `use a`.
        if path.len() > 1 && path.last().is_some_and(|s| s == "self") {
            path.pop();
        }
        let Some(last) = path.last().cloned() else {
            return;
        };
        let line = span.start().line;
        let named = Named { path, line };
        let name = name.map_or(last, ToString::to_string);
        if name == "_" {
            self.module.named.push(named);
        } else {
            self.module.imports.insert(name, named);
        }
    }

    /// The paths in a macro's arguments or in its body: names with `::` between them.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut line = 0;
        let (mut colons, mut dollar) = (0, false);
        for token in tokens {
            match &token {
                TokenTree::Ident(i) => {
                    if colons != 2 {
                        self.flush(&mut path, line);
                        line = i.span().start().line;
                    }
                    // `$crate::x`, but `$name::x` may be anything.
                    let of_crate = dollar && i == "crate";
                    path.push(match dollar && !of_crate {
                        true => "$".to_string(),
                        false => i.to_string(),
                    });
                    (colons, dollar) = (0, false);
                    continue;
                }
                TokenTree::Punct(p) if p.as_char() == ':' => {
                    let joined = p.spacing() == Spacing::Joint || colons == 1;
                    colons = if joined { colons + 1 } else { 0 };
                    continue;
                }
                TokenTree::Punct(p) if p.as_char() == '$' => {
                    self.flush(&mut path, line);
                    (colons, dollar) = (0, true);
                    continue;
                }
                // `a::{b, c}` within a macro.
                TokenTree::Group(g) if colons == 2 => self.flush_into(&path, line, g.stream()),
                TokenTree::Group(g) => self.tokens(g.stream()),
                _ => (),
            }
            self.flush(&mut path, line);
            (colons, dollar) = (0, false);
        }
        self.flush(&mut path, line);
    }

    fn flush(&mut self, path: &mut Vec<String>, line: usize) {
        let path = std::mem::take(path);
        if !path.is_empty() && !path.iter().any(|s| s == "$") {
            self.module.named.push(Named { path, line });
        }
    }

    fn flush_into(&mut self, before: &[String], line: usize, group: TokenStream) {
        for token in group {
            if let TokenTree::Ident(i) = token {
                let mut path = before.to_vec();
                path.push(i.to_string());
                self.flush(&mut path, line);
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'ast> {
    fn visit_item(&mut self, item: &'ast Item) {
        if attributes(item).is_some_and(|a| for_tests(a)) {
            return;
        }
        self.define(item);
        match item {
            Item::Mod(child) => self.children.push(child),
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.import(&item.tree, &[]);
    }

    fn visit_item_extern_crate(&mut self, item: &'ast syn::ItemExternCrate) {
        let name = item.rename.as_ref().map_or(&item.ident, |(_, to)| to);
        let path = vec![match item.ident == "self" {
            true => "crate".to_string(),
            false => item.ident.to_string(),
        }];
        let line = item.ident.span().start().line;
        let named = Named { path, line };
        self.module.imports.insert(name.to_string(), named);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let Some(first) = path.segments.first() {
            let line = first.ident.span().start().line;
            let segments = path.segments.iter().map(|s| s.ident.to_string());
            let path = segments.collect();
            self.module.named.push(Named { path, line });
        }
        visit::visit_path(self, path);
    }

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        visit::visit_macro(self, mac);
        self.tokens(mac.tokens.clone());
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        if let Some(name) = &item.ident {
            self.module.items.insert(name.to_string());
        }
        visit::visit_item_macro(self, item);
    }
}

fn attributes(item: &Item) -> Option<&Vec<Attribute>> {
    Some(match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::ExternCrate(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::ForeignMod(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::TraitAlias(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Union(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => return None,
    })
}
