r"""Join orders with a product table loaded from a file before the first start.

    tidewheel broker --port 9092 --topics product-orders:4,product-changes:4,priced-orders:4
    tidewheel bootstrap products --app examples/bootstrap_product_table.py:topology --from products.csv \
        --select 'id AS key' --select name --select price --input-offsets latest
    tidewheel run examples/bootstrap_product_table.py:topology

`products.csv` (or .parquet, .json, any table that Spark reads) has one product per line: id, name,
price. Later changes arrive in the topic `product-changes`: product id and new row as JSON.
`product-orders` has product ids with quantities.
"""

from dataclasses import dataclass

from tidewheel import Serdes, StreamsBuilder

config = {"application_id": "bootstrap-product-table"}


@dataclass
class Product:
    """Current row of a product."""

    name: str
    price: float


PRODUCT = Serdes.json(Product)


def priced(quantity: int, product: Product) -> str:
    return f"{quantity} x {product.name} = {quantity * product.price:.2f}"


def topology() -> StreamsBuilder:
    builder = StreamsBuilder()
    products = (
        builder.stream("product-changes", key_serde=str, value_serde=PRODUCT)
        .group_by_key()
        .reduce(lambda _, now: now, store="products")
    )
    (
        builder.stream("product-orders", key_serde=str, value_serde=int)
        .join(products, priced)
        .to("priced-orders", key_serde=str, value_serde=str)
    )
    return builder
